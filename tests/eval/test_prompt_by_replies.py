"""The prompting baseline by replies: one prompt for every back end, replies read as they come, none averaged away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from model_server import ModelServer
from tiny_kbm import example

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.evaluation.scores import read_scores
from kbtrain.gates.prompted import SampledPrompt, needs_information
from kbtrain.io import jsonl
from kbtrain.io.provenance import read_meta
from kbtrain.labeling.examples import example as plain
from kbtrain.llm.base import AnswerRequest, Sampling, ScriptedLLM
from kbtrain.prompts.kbm import answer_prompt, need_prompt
from kbtrain.records import Question


@pytest.mark.parametrize(
    ("reply", "need"),
    [
        ('{"need": "True"}', True), ('{"need": "False"}', False), ("need: true", True), ("False", False),
        ('```json\n{"need": false}\n```', False), ("Yes, I do.", True), ("No.", False), ("(need: True)", True),
        ("True or not, need: False", False), ("不需要", False), ("需要更多资料", True), ("是", True), ("否", False),
        ("<think>Yes or no? I need: true</think>No.", False), ("<think>need: true", None),
        ("I cannot say", None), ("", None), ("Noah", None), ("Noël", None),
        ("不是", False), ("不是的,我知道答案。", False), ("是否需要更多信息?否", False), ("没有需要", False),
        ("并非需要", False), ("不用", False), ("无需更多信息,我可以回答", False), ("我没有必要再查", False),
        ("这是一个简单的问题,我不需要更多资料", False), ("我是否需要更多资料:不需要", False),
        ("需要更多资料吗?不", False), ("答案是False", False), ("需要:否", False), ("需要", True),
        ("是的,需要更多资料", True), ("我是需要更多资料的", True),
        ("是否需要更多信息?是", True), ("我不是很确定,需要更多资料", True),
        ("答案是:需要,否则会答错", True), ("应该是。", True),
        ("我不知道是否需要", None), ("这是北京", None),
        ("不是\uff0c我知道\uff01", False), ("是的\uff0c需要更多资料", True), ("我需要更多资料吗\uff1f不", False),
        ("需要知道什么是首都", True), ("需要\uff1a否", False), ("需要更多资料\uff1a北京的人口", True),
    ],
)  # fmt: skip
def test_replies_are_read_as_they_come(reply: str, need: bool | None) -> None:
    assert needs_information(reply) is need


def test_the_score_is_the_share_of_replies_that_say_a_value() -> None:
    said = ['{"need": "True"}', "False", "hm", "need: True"]
    asked: list[str] = []

    def reply(request: AnswerRequest, index: int) -> str:
        asked.append(answer_prompt(request.question, request.condition, request.evidence))
        return "hm" if "question 1" in request.question.text else said[index]

    gate = SampledPrompt(ScriptedLLM("x", Sampling(), reply), n=4)
    first, second = example(0), plain(Question("q", "question 1", (), "dev", "d"), None)
    assert gate.score([first, second]) == [pytest.approx(2 / 3), 0.5]
    assert asked[0] == need_prompt(first.question, "en")
    counts = {"requests": 2, "samples": 8, "unparsed": 5}
    assert {name: gate.spent[name] for name in counts} == counts and gate.spent["prompt_tokens"] > 0


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_server_s_model_is_asked_by_the_scoring_script(
    script: Any, tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tiny_kbm import make_folder

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    questions = [
        Question(f"{s}{i}", f"What is fact {i} of {s}?", ("x",), s, "t") for s in ("dev", "test") for i in range(3)
    ]
    for split in ("dev", "test"):
        rows = [plain(q, None) for q in questions if q.split == split]
        jsonl.write(tmp_path / "examples" / f"{split}.jsonl", rows)
    model = make_folder(tmp_path / "model")

    def say(body: dict[str, Any], i: int) -> str:
        return '{"need": "True"}' if i < 3 else '{"need": "False"}'

    with ModelServer(models=(str(model),), say=say) as server:
        (tmp_path / "llm.yaml").write_text(
            f"run: elsewhere\nmodel: {model}\nbackend: openai\nserver_url: {server.url}\nserver_endpoint: {endpoint}\n"
        )
        module = script("score")
        settings = {"run": tmp_path, "only": ("prompt",), "prompt_llm": tmp_path / "llm.yaml", "prompt_samples": 4}
        module.main(build(module.ChoiceConfig, None, settings))
        asked = len(server.requests)
        module.main(build(module.ChoiceConfig, None, settings))
        assert len(server.requests) == asked == 6  # a second run asks nothing
        assert all("\n" not in body.get("stop", []) for body in server.requests)
    scores = read_scores(tmp_path / "scores" / "prompt.jsonl")["prompt"]
    assert scores == {q.id: 0.75 for q in questions}
    meta = read_meta(tmp_path / "scores" / "prompt.jsonl")
    assert meta["spent_per_question"]["prompt"]["test"]["samples"] == 4.0 and meta["model"] == str(model)
    assert meta["spent_per_question"]["prompt"]["test"]["prompt_tokens"] > 0 and meta["server"] == {"prompt": True}


def test_replies_that_are_asked_for_one_by_one_read_the_prompt_as_often() -> None:
    together, apart = (
        SampledPrompt(ScriptedLLM("x", Sampling(), lambda request, index: "True"), n=4, requests=times)
        for times in (1, 4)
    )
    assert together.score([example(0)]) == apart.score([example(0)]) == [1.0]
    assert apart.spent["prompt_tokens"] == 4 * together.spent["prompt_tokens"] > 0
    assert (together.spent["requests"], apart.spent["requests"]) == (1, 4)


def test_a_cluster_cannot_ask_for_another_process(script: Any, tmp_path: Path) -> None:
    module = script("score")
    with pytest.raises(UserError, match="key 'prompt_llm': its model is asked from this process"):
        build(module.ChoiceConfig, None, {"prompt_llm": tmp_path / "x.yaml", "engine": "ray"})
