"""RAGate-Prompt: the paper's words, scores from the two answers' tokens, and no way for a label into the prompt."""

from dataclasses import fields, replace

import pytest
from tiny_kbm import make_model, make_tokenizer
from tiny_turns import turn

from kbtrain.errors import UserError
from kbtrain.gates.ragate.peft import RagatePrompt
from kbtrain.prompts.kbm import render_chat
from kbtrain.prompts.ragate import RAGATE_PROMPTS, first_kept, ragate_fingerprint, ragate_prompt
from kbtrain.records import Hit, TurnExample, Utterance


@pytest.fixture(scope="module")
def model():
    tokenizer = make_tokenizer()
    return make_model("llama", len(tokenizer) + 8), tokenizer


def test_zero_shot_prompt_is_appendix_a_to_the_letter():
    assert ragate_prompt("USER: Hi.", "zero_shot") == (
        "Below is an instruction that describes a task. Please respond with 'True' or 'False' only that appropriately "
        "completes the request.\n\nInstruction: Analyse the conversational context so far. Generate an appropriate "
        "response. Consider the invovled entites. Estimate if augmenting the response with external knowledge is "
        "helpful with an output of 'True' or 'False' only.\n### Input: USER: Hi.\n### Response:"
    )


def test_in_context_prompt_adds_the_paper_s_two_examples():
    prompt = ragate_prompt("USER: Hi.", "in_context")
    assert prompt.startswith(ragate_prompt("", "zero_shot").split("### Input")[0])
    first, second = prompt.index("Example 1: USER: I'm planning a trip"), prompt.index("Example 2: USER: Get me bus")
    assert "how many stops does the flight have?\n\nResponse: True\n\n" in prompt[first:second]
    assert prompt[second:].endswith(
        "USER: only one, please.\n\n### Response: False\n### Input: USER: Hi.\n### Response:"
    )
    assert ragate_fingerprint("zero_shot") != ragate_fingerprint("in_context")


def test_the_score_is_p_true_against_p_false_after_the_prompt(model):
    import torch

    network, tokenizer = model
    gate = RagatePrompt(network, tokenizer)
    text = render_chat(tokenizer, ragate_prompt("USER: Tell me about the museum", "zero_shot"))
    ids = {v: tokenizer(text + v, add_special_tokens=False)["input_ids"] for v in ("True", "False")}
    at = next(i for i, (a, b) in enumerate(zip(ids["True"], ids["False"], strict=False)) if a != b)
    with torch.no_grad():
        logits = network(torch.tensor([ids["True"][:at]])).logits[0, -1]
    two = torch.softmax(logits[[ids["True"][at], ids["False"][at]]].double(), 0)
    assert gate.score([turn(0)]) == pytest.approx([float(two[0])], abs=1e-5)


FUTURE = {
    "label": True, "response": "GOLD", "response_acts": ("GOLD",), "response_actions": ("GOLD",),
    "enriched_response": "GOLD", "gold_snippets": ("GOLD",), "position": 0.123, "split": "test",
}  # fmt: skip


@pytest.mark.parametrize("shots", ["zero_shot", "in_context"])
def test_the_gold_label_cannot_reach_the_prompt(model, shots):
    """Every field that is not context or a wanted feature may be anything: the prompt stays the same."""
    gate = RagatePrompt(*model, shots=shots, with_knowledge=True)
    hit = Hit("s1", "Museum", "It opens at 8.", 1.0)
    bare = turn(1, knowledge=(hit,), label=None, response=None, response_acts=(), position=None)
    changed = replace(
        bare, **FUTURE, turn=99, services=("GOLD",), synthetic_response="GOLD", source="GOLD", entities=()
    )
    assert {f.name for f in fields(TurnExample)} == {
        *FUTURE, "id", "dialogue_id", "turn", "context", "services", "synthetic_response", "entities", "knowledge",
        "source",
    }  # fmt: skip
    render = gate.scorer.encoder.template.render
    texts = {
        render(gate.prompts.prompt_example(replace(e, label=label)))
        for e in (bare, changed)
        for label in (None, True, False)
    }
    assert len(texts) == 1
    assert "GOLD" not in texts.pop()
    assert gate.prompts.prompt_example(changed).mastery is None


def test_a_prompt_that_is_too_long_loses_its_oldest_turns(model):
    network, tokenizer = model
    whole = RagatePrompt(network, tokenizer)
    size = len(whole.scorer.encoder.encode(whole.prompts.prompt_example(turn(0))).prompt)
    context = (*(Utterance("USER", f"bus {i}") for i in range(90)), Utterance("USER", "Tell me about the museum"))
    gate = RagatePrompt(network, tokenizer, max_length=size + 60)
    asked = gate.prompts.prompt_example(turn(0, context=context))
    assert asked.question.endswith("USER: bus 89 USER: Tell me about the museum")
    assert asked.question.startswith("USER: bus ")
    assert gate.cut == 91 - asked.question.count("USER:") > 0
    assert gate.scorer.encoder.encode(asked).length <= size + 60
    with pytest.raises(UserError, match="its last turn does not fit into max_length 40"):
        RagatePrompt(network, tokenizer, max_length=40).score([turn(0)])


def test_the_prompt_that_is_scored_has_the_examples_and_the_knowledge_that_were_asked_for(model):
    network, tokenizer = model
    known = turn(0, knowledge=(Hit("s", "Museum", "opens at nine", 1.0),))
    for shots in ("zero_shot", "in_context"):
        for with_knowledge in (False, True):
            gate = RagatePrompt(network, tokenizer, shots, with_knowledge, max_length=4096)
            assert RAGATE_PROMPTS[gate.name] == (shots, with_knowledge)
            asked = gate.prompts.encode(known).prompt
            text = ragate_prompt(
                "USER: Tell me about the museum", shots, "Museum opens at nine" if with_knowledge else None
            )
            assert tokenizer.decode(asked) == render_chat(tokenizer, text)


def test_the_oldest_turns_go_first_and_never_half_a_turn():
    assert first_kept([5, 3, 4], 12) == 0
    assert first_kept([5, 3, 4], 11) == 1
    assert first_kept([5, 3, 4], 6) == 2
    assert first_kept([5, 3, 4], 3) == 3  # not even the newest fits
    assert first_kept([2, 9, 1], 4) == 2  # a short older turn does not jump over a long one
