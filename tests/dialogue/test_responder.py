"""The response generator: what it reads, what it never reads, and greedy responses with their least token."""

from __future__ import annotations

import pytest
import torch
from tiny_kbm import make_model, make_tokenizer
from tiny_turns import turn

from kbtrain.dialogue.responder import Reads, Responder, ResponsePrompts, fair_shares, greedy
from kbtrain.errors import UserError
from kbtrain.records import Hit

READS = Reads(max_length=400, response_tokens=12, knowledge_tokens=100, acts=False)
HITS = (Hit("a", "Museum", "It is old.", 1.0), Hit("b", "", "It is big.", 0.5))


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def read_text(tokenizer, one, hits=(), **changes):
    prompts = ResponsePrompts(tokenizer, READS.model_copy(update=changes))
    return tokenizer.decode(prompts.prompt(one, hits).ids)


def test_a_prompt_is_context_then_knowledge_then_the_mark_of_the_response(tokenizer):
    assert read_text(tokenizer, turn(1), HITS) == (
        "<|context|> USER: Find me a bus for 1 people please SYSTEM: Where do you want to go? USER: Book 1 tickets"
        " <|knowledge|> Museum It is old. <|knowledge|> It is big. <|response|>"
    )
    assert read_text(tokenizer, turn(3)) == "<|context|> USER: Book 3 tickets <|response|>"
    assert read_text(tokenizer, turn(3), acts=True).endswith("tickets <|action|> NOTIFY_SUCCESS <|response|>")
    assert read_text(tokenizer, turn(3, response_acts=()), acts=True).endswith("<|action|> none <|response|>")


def test_acts_may_be_read_with_their_slots_and_values(tokenizer):
    one = turn(3, response_acts=("OFFER",), response_actions=("OFFER name = Sino / Roma", "REQUEST city"))
    assert read_text(tokenizer, one, acts=True).endswith("<|action|> OFFER <|response|>")
    told = read_text(tokenizer, one, acts=True, act_values=True)
    assert told.endswith("<|action|> OFFER name = Sino / Roma, REQUEST city <|response|>")


def test_a_prompt_tells_nothing_of_label_response_or_gold_snippets(tokenizer):
    told = {"label": None, "response": "SECRET", "enriched_response": "SECRET", "gold_snippets": ("SECRET",)}
    told |= {"synthetic_response": "SECRET", "response_acts": ("SECRET",)}
    assert read_text(tokenizer, turn(3, **told)) == read_text(tokenizer, turn(3))


def test_a_long_context_is_cut_at_a_turn_from_the_left_and_snippets_at_their_ends(tokenizer):
    whole = ResponsePrompts(tokenizer, READS).prompt(turn(2), HITS)
    shorter = READS.model_copy(update={"max_length": len(whole.ids) + READS.response_tokens - 1})
    found = ResponsePrompts(tokenizer, shorter).prompt(turn(2), HITS)
    assert (whole.turns_cut, found.turns_cut, found.knowledge_cut) == (0, 1, 0)
    assert tokenizer.decode(found.ids).startswith(
        "<|context|> SYSTEM: Where do you want to go? USER: Find me a bus for 2"
    )
    texts = (" <|knowledge|> Museum It is old.", " <|knowledge|> It is big.")
    long, short = (len(tokenizer(text)["input_ids"]) for text in texts)
    few = READS.model_copy(update={"knowledge_tokens": long + short - 3})
    cut = ResponsePrompts(tokenizer, few).prompt(turn(2), HITS)
    assert cut.knowledge_cut == 3 and len(cut.ids) == len(whole.ids) - 3
    with pytest.raises(UserError, match=r"turn 'train2:5': its last utterance, .* do not fit into max_length 40"):
        ResponsePrompts(tokenizer, READS.model_copy(update={"max_length": 40})).prompt(turn(2))


@pytest.mark.parametrize(
    ("lengths", "room", "kept"),
    [
        ([5, 5], 20, [5, 5]),
        ([9, 2, 9], 12, [5, 2, 5]),
        ([200] * 3, 120, [40] * 3),
        ([], 9, []),
        ([7], 3, [3]),
    ],
)
def test_each_snippet_gets_its_share_of_the_room_and_what_others_leave(lengths, room, kept):
    assert fair_shares(lengths, room) == kept


def test_a_response_ends_with_the_end_token_unless_it_is_cut(tokenizer):
    prompts = ResponsePrompts(tokenizer, READS)
    ids, cut = prompts.response(" Yes ")
    assert tokenizer.decode(ids) == " Yes<|im_end|>" and cut == 0
    ids, cut = prompts.response("word " * 20)
    assert len(ids) == 12 and cut > 0 and ids[-1] != tokenizer.eos_token_id


def by_hand(model, tokenizer, prompt, most):
    """The argmax, a token at a time and without a cache."""
    ids, least = list(prompt), []
    for _ in range(most):
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1].double()
        token = int(logits.argmax())
        if token == tokenizer.eos_token_id:
            break
        least.append((float(logits[token]), float(logits.softmax(-1)[token])))
        ids.append(token)
    return ids[len(prompt) :], least


def test_greedy_responses_and_their_least_token_equal_the_plain_loop_alone_and_in_a_batch(tokenizer):
    torch.set_num_threads(1)
    model = make_model(vocabulary=len(tokenizer) + 8, seed=3)
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.repetition_penalty = 5.0  # a model's own settings are not used
    prompts = [list(ResponsePrompts(tokenizer, READS).prompt(turn(i)).ids) for i in range(4)]
    found = greedy(model, tokenizer, prompts, 12)
    for prompt, one in zip(prompts, found, strict=True):
        ids, least = by_hand(model, tokenizer, prompt, 12)
        assert one.n_tokens == len(ids) > 0
        assert one.text == tokenizer.decode(ids, skip_special_tokens=True).strip()
        assert one.minimum_logit == pytest.approx(min(logit for logit, _ in least), abs=1e-4)
        assert one.minimum_probability == pytest.approx(min(p for _, p in least), rel=1e-3)
        assert greedy(model, tokenizer, [prompt], 12)[0].text == one.text
    assert model.generation_config.repetition_penalty == 5.0


def test_an_end_token_ends_a_response_and_an_empty_one_has_no_least_token(tokenizer):
    model = make_model(vocabulary=len(tokenizer) + 8, seed=3)
    prompt = ResponsePrompts(tokenizer, READS).prompt(turn(0)).ids
    first = by_hand(model, tokenizer, prompt, 1)[0][0]
    model.generation_config.eos_token_id = [first, tokenizer.eos_token_id]
    found = greedy(model, tokenizer, [prompt], 12)[0]
    assert (found.text, found.n_tokens, found.minimum_logit, found.minimum_probability) == ("", 0, None, None)


def test_a_folder_without_a_generator_is_told(tmp_path):
    with pytest.raises(UserError, match=r"is '.*' a folder of recipes/train_dialogue.py"):
        Responder.load(tmp_path)
    (tmp_path / "dialogue.json").write_text('{"kind": "gate"}')
    with pytest.raises(UserError, match=r"dialogue.json: field 'kind'"):
        Responder.load(tmp_path)
