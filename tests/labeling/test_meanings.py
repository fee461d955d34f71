"""Groups of answers that say the same: by a stand-in judge, a scripted language model and a tiny classifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import scripts
from tiny_turns import bert_folder

from kbtrain.errors import UserError
from kbtrain.evaluation.fidelity import read_changes
from kbtrain.io import jsonl
from kbtrain.io.provenance import write_meta
from kbtrain.io.store import SampleStore
from kbtrain.labeling.change import MeaningGroups, by_groups, change
from kbtrain.labeling.judges import LLMJudge
from kbtrain.labeling.meanings import (
    EntailmentJudge,
    LLMPairJudge,
    Pair,
    PairCounts,
    entailment_label,
    meaning_groups,
)
from kbtrain.llm.base import Sampling
from kbtrain.llm.scripted import ScriptedLLM
from kbtrain.prompts.kbm import answer_prompt
from kbtrain.records import Label, Question, Sample, SampleSet

WHY = Question("q1", "Why is the sky blue?", (), "dev", "made-up", gold="hidden")
LIGHT = "Air scatters blue light more than red light."
OTHER = "Short waves are scattered most by the molecules above us."
SEA = "It mirrors the colour of the sea."


class ByFirstWord:
    """A judge that calls answers the same if both speak of scattering; it abstains on the sea."""

    name = "stand-in"

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def facts(self) -> dict[str, Any]:
        return {"judge": self.name}

    def same(self, pairs: Sequence[Pair]) -> list[bool | None]:
        self.asked += [(one, other) for _, one, other in pairs]
        return [None if SEA in (one, other) else "scatter" in one and "scatter" in other for _, one, other in pairs]


def stored(path: Path, question: str, llm: Sequence[str], rag: Sequence[str]) -> SampleStore:
    store = SampleStore(path)
    store.begin("main", {"model": "made-up"})
    sets = []
    for condition, texts in (("llm", llm), ("rag", rag)):
        first, *rest = (Sample(i - 1, text, 3, "eos", -1.0) for i, text in enumerate(texts))
        sets.append(SampleSet(question, condition, tuple(rest), first, 20))  # type: ignore[arg-type]
    store.put("main", sets)
    return store


def test_an_answer_joins_the_first_group_that_says_the_same(tmp_path: Path) -> None:
    judge, counts = ByFirstWord(), PairCounts()
    with stored(tmp_path / "samples.db", "q1", [LIGHT, SEA, LIGHT], [OTHER, f"So: {LIGHT}", ""]) as store:
        (found,) = meaning_groups(store, "main", [WHY], judge, 8, counts)
    assert set(found.group.values()) == {0, 1} and len(found.group) == 4  # the empty answer is in none
    # LIGHT opens group 0 and SEA group 1; OTHER joins 0; the fourth holds LIGHT, so that no model is asked
    assert judge.asked == [(LIGHT, SEA), (LIGHT, OTHER)]
    assert (counts.pairs, counts.abstained) == (2, 1)


def test_change_by_groups_sees_other_words_for_the_same(tmp_path: Path) -> None:
    with stored(tmp_path / "samples.db", "q1", [LIGHT, SEA], [OTHER, OTHER]) as store:
        (groups,) = meaning_groups(store, "main", [WHY], ByFirstWord(), 8, PairCounts())
    by_rule, by_model = (change(WHY, [LIGHT, SEA], [OTHER], equal) for equal in (by_groups(None), by_groups(groups)))
    assert by_rule is not None and by_rule.value == 1.0
    assert by_model is not None and by_model.value == 0.5
    with pytest.raises(UserError, match=r"question 'q1': no group for the answer 'new one'; run data_gen/judge_change"):
        change(WHY, ["new one"], [OTHER], by_groups(groups))


def test_a_language_model_is_asked_for_one_or_zero_about_both_answers() -> None:
    prompts: list[str] = []

    def reply(request: Any, index: int) -> str:
        prompts.append(answer_prompt(request.question, "llm"))
        return "1" if "scattered" in prompts[-1] else "perhaps"

    judge = LLMPairJudge(LLMJudge(ScriptedLLM("m", Sampling(0, 1.0, 1.0, 0, 8), reply), judged="pairs"))
    chinese = replace(WHY, id="q2", text="天空为什么是蓝色的？", language="zh")
    assert judge.same([(WHY, LIGHT, OTHER), (chinese, "空气散射蓝光。", "海的颜色。")]) == [True, None]
    assert prompts == [
        "Given a question and two answers, output 1 if the two answers say the same, and 0 if they do not.\n"
        f"question: {WHY.text}\nfirst answer: {LIGHT}\nsecond answer: {OTHER}\noutput: ",
        "给定问题和两个答案,如果两个答案的意思相同请输出1,不同则输出0.\n"
        "问题: 天空为什么是蓝色的？\n答案一: 空气散射蓝光。\n答案二: 海的颜色。\n输出: ",
    ]
    assert "judge_prompt" in judge.facts()


def test_two_answers_are_the_same_where_each_entails_the_other(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = bert_folder(tmp_path / "bert")
    torch.manual_seed(3)
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=3, id2label={0: "contradiction", 1: "ENTAILMENT", 2: "neutral"},
        label2id={"contradiction": 0, "ENTAILMENT": 1, "neutral": 2},
    )  # fmt: skip
    with torch.no_grad():  # so that classes differ from pair to pair
        model.classifier.weight.normal_(0, 20)
    model.save_pretrained(folder)
    judge = EntailmentJudge.load(str(folder), "fp32", "cpu")
    tokenizer, texts = AutoTokenizer.from_pretrained(folder), [LIGHT, OTHER, SEA, "yes", "book a table", "a movie"]
    pairs: list[Pair] = [(WHY, one, other) for one in texts for other in texts]
    found = judge.same(pairs)

    def entails(one: str, other: str) -> bool:
        inputs = tokenizer(f"{WHY.text} {one}", f"{WHY.text} {other}", return_tensors="pt")
        with torch.inference_mode():
            return int(judge.model(**inputs).logits.argmax()) == 1

    assert found == [entails(one, other) and entails(other, one) for _, one, other in pairs]
    assert any(found) and not all(found)
    assert found == judge.same([(question, other, one) for question, one, other in pairs])  # symmetric
    with pytest.raises(UserError, match=r"model 'm': no class 'entailment' among its classes \(positive, not_ent"):
        entailment_label({0: "positive", 1: "not_entailment"}, "m")


def test_labels_and_fidelity_read_the_groups(tmp_path: Path) -> None:
    rows = [replace(WHY, id=f"{split}{i}", text=f"Why {i} {split}?", split=split)
            for split in ("train", "dev", "test") for i in range(2)]  # type: ignore[arg-type]  # fmt: skip
    jsonl.write(tmp_path / "questions.jsonl", rows)
    write_meta(tmp_path / "questions.jsonl", stage="made-up", config={}, inputs=[])
    for row in rows:
        stored(tmp_path / "samples.db", row.id, [LIGHT, LIGHT, LIGHT], [OTHER, OTHER, SEA]).close()
    with SampleStore(tmp_path / "samples.db", read_only=True) as store:
        made = list(meaning_groups(store, "main", rows, ByFirstWord(), 4, PairCounts()))
    jsonl.write(tmp_path / "meanings.jsonl", made)
    inputs = [tmp_path / "questions.jsonl", tmp_path / "samples.db"]
    write_meta(tmp_path / "meanings.jsonl", stage="judge_change", config={}, inputs=inputs,
               extra={"judge": {"judge": "stand-in"}})  # fmt: skip
    assert read_changes(tmp_path)["test"].differ == [True, True]  # other words
    done = scripts.run("data_gen/label.py", "--run", str(tmp_path), "--meanings", "true", "--tau-certainty", "middle")
    assert done.returncode == 0, done.stderr
    assert "have 12 words or more" not in done.stdout
    assert [label.change for label in jsonl.read(Label, tmp_path / "labels.jsonl")] == [0.5] * 6
    assert read_changes(tmp_path)["test"].differ == [False, False]
    assert jsonl.read(MeaningGroups, tmp_path / "meanings.jsonl") is not None
