"""The real embedded model, if it was fetched (`make setup` does): it speaks its own chat format and knows Paris."""

import pytest
from support import scripts

from kbtrain.answers.grading import is_correct
from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.models import embedded
from kbtrain.prompts import kbm as prompts
from kbtrain.records import Evidence, GateExample, GateScore, Hit, Question

NAME = "smollm2-135m-instruct"
pytestmark = pytest.mark.skipif(not embedded.is_ready(NAME), reason=f"kbtrain models get {NAME}")


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(embedded.path_of(NAME))


def test_chat_template_and_special_tokens_are_those_of_smollm2(tokenizer):
    assert prompts.render_chat(tokenizer, "Hi") == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompts.encode(tokenizer, "Hi")[:3] == [1, 9690, 198]  # <|im_start|> system \n
    assert (tokenizer.eos_token_id, tokenizer.model_max_length) == (2, 8192)


def test_greedy_answer_is_paris_and_ends_with_eos(tokenizer):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(embedded.path_of(NAME), dtype=torch.float32)
    ids = torch.tensor([prompts.encode(tokenizer, "What is the capital of France?")])
    answer = model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


def test_four_questions_are_sampled_and_scored_with_the_real_weights(tmp_path):
    asked = [("France", "Paris"), ("Italy", "Rome"), ("Japan", "Tokyo"), ("Zarzuela", "Quorbin")]
    questions = [
        Question(land, f"What is the capital of {land}?", (town,), ("dev", "test")[i % 2], "towns")
        for i, (land, town) in enumerate(asked)
    ]
    hits = {land: (Hit(land, land, f"The capital of {land} is {town}.", 1.0),) for land, town in asked}
    jsonl.write(tmp_path / "questions.jsonl", questions)
    jsonl.write(tmp_path / "evidence.jsonl", [Evidence(q.id, "bm25", q.text, hits[q.id]) for q in questions])
    for split in ("dev", "test"):
        rows = [GateExample(q.id, q.id, split, q.text, "en", None) for q in questions if q.split == split]
        jsonl.write(tmp_path / "examples" / f"{split}.jsonl", rows)
    sizes = ("--conditions", "[llm, rag]", "--samples", "{dev: 3, test: 0}", "--max-new-tokens", 12)
    done = scripts.run("data_gen/sample.py", "--run", tmp_path, "--model", NAME, *sizes)
    assert done.returncode == 0, done.stderr[-2000:]
    with SampleStore(tmp_path / "samples.db", read_only=True) as store:
        stored = {(made.question_id, made.condition): made for made in store.iterate("main")}
    right = {key: is_correct(next(q for q in questions if q.id == key[0]), made.greedy.text)
             for key, made in stored.items()}  # fmt: skip
    assert len(stored) == 8 and all(right[land, "rag"] for land, _ in asked)
    assert right["France", "llm"] and right["Italy", "llm"] and not right["Zarzuela", "llm"]
    assert [len(stored[land, "llm"].samples) for land, _ in asked] == [3, 0, 3, 0]
    done = scripts.run("eval/score.py", "--run", tmp_path, "--model", NAME)
    assert done.returncode == 0, done.stderr[-2000:]
    scores = {score.question_id: score.score for score in jsonl.read(GateScore, tmp_path / "scores" / "prompt.jsonl")}
    assert len(scores) == 4 and all(0 < score < 1 for score in scores.values())
