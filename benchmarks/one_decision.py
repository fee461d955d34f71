"""What one user waits for: each gate of a run asked one question at a time, beside the same model's plain answer.

Median and 95th percentile, in milliseconds: of the gate opened in Python (`load_gate(folder).score([question])`), and
of `POST /v1/gate` of a `kbtrain serve` that holds it. The answer is the model's greedy one without a search, drawn
alone. Behind vLLM the pass of a probe is the answer's own prefill: ``--upstream`` measures whole chat requests, that is
decision and answer, through a `kbtrain serve` of each gate. Nothing is searched; vLLM forgets its prefixes each time.
The last column says from how many tokens of an answer on the median of what a gate adds is at most a tenth of it.
``--at-once`` sends that many chats together, and times them until the last answer.

Examples:
  python benchmarks/one_decision.py --run runs/demo
  python benchmarks/one_decision.py --run runs/demo --gates "[features, probe]" --questions 50
  VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --port 8001 --dtype float32 $(kbtrain vllm-args runs/demo/probe)
  python benchmarks/one_decision.py --run runs/demo --gates "[features, probe]" --upstream http://127.0.0.1:8001/v1
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path

import httpx2
import numpy as np
from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.gates.registry import load_gate
from kbtrain.llm.backends import LLMConfig, open_llm
from kbtrain.llm.base import AnswerRequest
from kbtrain.questions.checks import read_questions
from kbtrain.records import Question
from kbtrain.show import aligned

sys.path.insert(0, str(Path(__file__).parent))
from serving import kbtrain

WARM = 3  # questions that are asked before the clock runs


class OneDecisionConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder with gates and questions.jsonl")
    gates: tuple[str, ...] = Field(
        ("features", "probe", "draft_probe", "stack", "kbm"), min_length=1, description="folders of gates in it"
    )
    model: str = Field("smollm2-135m-instruct", description="the answering model")
    max_new_tokens: int = Field(64, ge=1, description="longest answer, in tokens")
    questions: int = Field(100, ge=1, description="test questions to ask")
    upstream: str | None = Field(None, description="vLLM's server: whole chat requests to it are timed")
    at_once: int = Field(1, ge=1, description="upstream: chats that are sent together")
    output: Path = Field(Path("runs/bench/one_decision.json"), description="where the numbers go")


def main(config: OneDecisionConfig) -> None:
    asked = [question for _, question in read_questions(config.run / "questions.jsonl") if question.split == "test"]
    asked = asked[: config.questions]
    if config.upstream:
        chats, tokens = time_chats(config, config.upstream, asked)
        write(config, {**chats, "tokens": tokens})
        base = chats[config.gates[0]]
        print(aligned(CHAT_HEAD, [chat_row(name, times, base, tokens) for name, times in chats.items()]))
        return
    if config.at_once > 1:
        raise UserError("key 'at_once': chats go to a server together; name it by --upstream")
    answer = time_answer(config, asked)
    measured = {"the model's plain answer": {"python": answer}}
    for name in config.gates:
        folder = config.run / name
        measured[name] = {"python": time_gate(folder, asked), "served": time_served(folder, asked)}
    write(config, measured)
    print(aligned(HEAD, [row(name, times, answer[0]) for name, times in measured.items()]))


def write(config: OneDecisionConfig, measured: Mapping[str, object]) -> None:
    config.output.parent.mkdir(parents=True, exist_ok=True)
    about = {"config": config.model_dump(mode="json"), "milliseconds": measured}
    config.output.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


HEAD = ["gate", "python: median, ms", "95 %", "served: median, ms", "95 %", "python / answer"]


def row(name: str, times: dict[str, tuple[float, float]], answer: float) -> list[str]:
    """One line of the table."""
    served = [f"{value:.1f}" for value in times.get("served", ())] or ["", ""]
    return [name, *(f"{value:.1f}" for value in times["python"]), *served, f"{times['python'][0] / answer:.3f}"]


def time_answer(config: OneDecisionConfig, questions: Sequence[Question]) -> tuple[float, float]:
    llm = open_llm(LLMConfig(model=config.model, max_new_tokens=config.max_new_tokens))

    def answer(question: Question) -> None:
        for _ in llm.answer([AnswerRequest(question, "llm", None, 0)]):
            pass

    return timed(answer, questions)


def time_gate(folder: Path, questions: Sequence[Question]) -> tuple[float, float]:
    gate = load_gate(folder)
    return timed(lambda question: gate.score([question.text]), questions)


def time_served(folder: Path, questions: Sequence[Question]) -> tuple[float, float]:
    with kbtrain(folder, None) as (port, _), contextlib.closing(HTTPConnection("127.0.0.1", port)) as connection:

        def ask(question: Question) -> None:
            body = json.dumps({"questions": [question.text]})
            connection.request("POST", "/v1/gate", body, {"content-type": "application/json"})
            if (reply := connection.getresponse()).status != HTTPStatus.OK:
                raise UserError(f"{folder}: the server answered {reply.status}: {reply.read()[:200]!r}")
            reply.read()

        return timed(ask, questions)


CHAT_HEAD = ["gate", "decision and answer: median, ms", "95 %", "median on top of the first gate, ms", "%",
             "a tenth from, tokens"]  # fmt: skip


def chat_row(name: str, times: Sequence[float], base: Sequence[float], tokens: Sequence[float]) -> list[str]:
    """One line of the table: ``base`` are the milliseconds of the same questions through the first gate, whose answers
    have these ``tokens``."""
    on_top = float(np.median(np.subtract(times, base)))
    each, start = np.polyfit(tokens, base, 1) if len(set(tokens)) > 1 else (np.nan, np.nan)
    tenth = f"{max(0.0, (10 * on_top - start) / each):.0f}" if each > 0 else "-"
    return [name, *(f"{np.quantile(times, share):.0f}" for share in (0.5, 0.95)), f"{on_top:.1f}",
            f"{100 * on_top / np.median(base):.1f}", tenth]  # fmt: skip


def time_chats(
    config: OneDecisionConfig, upstream: str, questions: Sequence[Question]
) -> tuple[dict[str, list[float]], list[float]]:
    """Milliseconds of each question by gate, and the mean tokens of its answer through the first one; of each group of
    questions where several are sent at once. The gates take turns, so that all meet the same load."""
    model = httpx2.get(f"{upstream}/models", timeout=60).json()["data"][0]["id"]
    with contextlib.ExitStack() as servers:
        # no score is above 1: nothing is searched
        more = [f"--upstream={upstream}", "--prompt=trained", "--threshold=1"]
        ports = {name: servers.enter_context(kbtrain(config.run / name, None, *more))[0] for name in config.gates}
        senders = servers.enter_context(ThreadPoolExecutor(config.at_once))

        def answer_tokens(name: str, question: Question) -> int:
            body = {"model": model, "temperature": 0, "max_tokens": config.max_new_tokens,
                    "messages": [{"role": "user", "content": question.text}]}  # fmt: skip
            reply = httpx2.post(f"http://127.0.0.1:{ports[name]}/v1/chat/completions", json=body, timeout=300)
            if reply.status_code != HTTPStatus.OK or reply.headers.get("x-kbtrain-score") is None:
                raise UserError(f"{name}: the server answered {reply.status_code} without a score: {reply.text[:99]}")
            return int(reply.json()["usage"]["completion_tokens"])

        spent: dict[str, list[float]] = {name: [] for name in ports}
        tokens: list[float] = []
        groups = [questions[i : i + config.at_once] for i in range(0, len(questions), config.at_once)]
        for number, group in enumerate([*groups[:WARM], *groups]):
            for name in ports:
                httpx2.post(f"{upstream.removesuffix('/v1')}/reset_prefix_cache", timeout=60).raise_for_status()
                start = time.perf_counter()
                counted = list(senders.map(answer_tokens, itertools.repeat(name), group))
                if number >= WARM:
                    spent[name].append(1000 * (time.perf_counter() - start))
                    tokens += [float(np.mean(counted))] if name == config.gates[0] else []
    return spent, tokens


def timed(ask: Callable[[Question], object], questions: Sequence[Question]) -> tuple[float, float]:
    """Median and 95th percentile of a call, in milliseconds."""
    for question in questions[:WARM]:
        ask(question)
    spent = []
    for question in questions:
        start = time.perf_counter()
        ask(question)
        spent.append(1000 * (time.perf_counter() - start))
    return float(np.median(spent)), float(np.quantile(spent, 0.95))


if __name__ == "__main__":
    run_script(main, OneDecisionConfig, __doc__)
