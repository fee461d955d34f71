"""The sampling stage with other back ends and in shards: the same run, whoever draws it and in however many parts."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from model_server import ModelServer
from support import scripts
from support.sample_sets import stored_rows as rows
from support.sample_sets import towns

from kbtrain.config import parse_args
from kbtrain.errors import UserError
from kbtrain.io.store import SampleStore, writing
from kbtrain.llm.base import ScriptedLLM
from kbtrain.llm.forecast import forecast
from kbtrain.llm.outputs import AlikeAnswers
from kbtrain.prompts.kbm import answer_prompt
from kbtrain.records import Sample, SampleSet

ROOT = Path(__file__).parent.parent.parent
N_QUESTIONS = 24


SAMPLE, MERGE = scripts.load("data_gen/sample.py"), scripts.load("data_gen/merge.py")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def make_run(tmp_path):
    return lambda name: towns(tmp_path / name, N_QUESTIONS)


def sample(folder, model, *more):
    given = [
        "--run", str(folder), "--model", str(model), "--samples", "{train: 4, test: 1}", "--max-prompt-tokens", "200",
        "--max-new-tokens", "8", "--batch-rows", "10", "--dtype", "bf16", "--window", "10",
        "--conditions", "[llm, rag, mask]",
    ]  # fmt: skip
    SAMPLE.main(parse_args(SAMPLE.SampleConfig, [*given, *more]))


ALIAS = ("--server-alias", "true")  # the server's name for the folder's model


def test_shards_of_the_real_sampler_merge_to_the_bytes_of_the_undivided_run(make_run, tiny_model):
    """In bf16, where another batch would round differently."""
    whole, sharded = make_run("whole"), make_run("sharded")
    sample(whole, tiny_model)
    for i in (3, 2, 1):
        sample(sharded, tiny_model, "--shard", f"{i}/3")
    MERGE.main(MERGE.MergeConfig(run=sharded))
    assert len(rows(whole / "samples.db")) == 3 * N_QUESTIONS
    assert rows(sharded / "samples.db") == rows(whole / "samples.db")


def test_a_second_sampler_is_told_so_before_it_opens_a_model(make_run):
    folder = make_run("run")
    with writing(folder / "samples.db", "main"), pytest.raises(UserError, match="another process is writing run"):
        sample(folder, "./no/such/model")
    with writing(folder / "samples.shard-1-of-2.db", "main"):  # shards do not wait for each other
        sample(folder, "any", "--backend", "scripted", "--shard", "2/2")


def test_a_server_run_that_broke_off_is_completed(make_run, tiny_model, capsys):
    whole, broken = make_run("whole"), make_run("broken")
    with ModelServer() as server:
        address = ("--backend", "openai", "--server-url", server.url, "--server-model", "tiny", *ALIAS)
        sample(whole, tiny_model, *address)
        capsys.readouterr()
        n_requests = len(server.requests)
        sample(whole, tiny_model, *address)
        assert "are in" in capsys.readouterr().out and len(server.requests) == n_requests  # nothing is asked again
        # greedy and samples of 72 question-conditions, and no question more than once
        assert n_requests == 3 * N_QUESTIONS * 2

        server.failures[:] = [""] * 31 + ["no_key"]
        with pytest.raises(UserError, match="status 401"):
            sample(broken, tiny_model, *address, "--server-concurrency", "1")
        assert len(rows(broken / "samples.db")) == 15
    with ModelServer() as other_port:  # the address is no part of the run
        address = ("--backend", "openai", "--server-url", other_port.url, "--server-model", "tiny", *ALIAS)
        sample(broken, tiny_model, *address)
    assert rows(broken / "samples.db") == rows(whole / "samples.db")
    with SampleStore(whole / "samples.db") as store:
        assert store.run_meta("main")["backend"] == "openai"


@pytest.mark.parametrize(
    ("failure", "expected"), [("", ""), ("echo_text", ""), ("echo_error", "[secret]"), ("echo_busy", "[secret]")]
)
def test_a_key_that_the_server_echoes_is_in_no_file_and_no_line(
    failure, expected, make_run, tiny_model, capfd, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted-key")
    folder, said = make_run("run"), ""
    with ModelServer((failure,) * 300) as server:
        address = ("--backend", "openai", "--server-url", server.url, "--server-model", "tiny", "--server-tries", "2",
                   *ALIAS)  # fmt: skip
        try:
            sample(folder, tiny_model, *address)
        except UserError as error:
            said = str(error)
        assert {request["key"] for request in server.requests} == {"Bearer sk-planted-key"}
    assert expected in said
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert len(written) >= 3
    assert not [path for path in written if b"planted" in path.read_bytes()]
    assert "planted" not in said + "".join(capfd.readouterr())


def test_every_sampling_config_is_valid():
    files = sorted((ROOT / "data_gen" / "configs").glob("sample_*.yaml"))
    read = {file.stem: parse_args(SAMPLE.SampleConfig, ["--config", str(file)]) for file in files}
    assert read.keys() >= {"sample_demo", "sample_demo_full", "sample_qwen2_vllm", "sample_server"}
    assert {name: read[name].backend for name in ("sample_demo", "sample_qwen2_vllm", "sample_server")} == {
        "sample_demo": "transformers", "sample_qwen2_vllm": "vllm", "sample_server": "openai",
    }  # fmt: skip


def test_a_dry_run_tells_requests_tokens_and_money_and_stores_nothing(make_run, tiny_model, capsys, tmp_path):
    folder = make_run("run")
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: EUR\nsearch: 1\nmillion_tokens_in: 1000000\nmillion_tokens_out: 0\nmachine_hour: 0\n"
                      "search_seconds: 0\nseconds_per_1000_tokens_in: 0\nseconds_per_1000_tokens_out: 0\n")  # fmt: skip
    more = ("--conditions", "[llm, rag]", "--dry-run", "--prices", str(prices))
    with ModelServer(logprobs=False) as server:
        address = ("--backend", "openai", "--server-url", server.url, "--server-model", "tiny", "--server-endpoint",
                   "chat", "--server-logprobs", "false", "--server-n", "false")  # fmt: skip
        sample(folder, "hosted", *address, *more)
        said = capsys.readouterr().out
        # 12 training questions with 4 samples and a greedy answer, 12 of test with 1 and a greedy one, 2 conditions
        n = 2 * (12 * 5 + 12 * 2)
        assert f"{n} HTTP requests, {n} answers" in said and f"out at most {n * 8:,}" in said
        sample(folder, "hosted", *address, *more, "--max-thought-tokens", "100")
        assert f"out at most {n * 108:,}" in capsys.readouterr().out  # a thought's budget is priced, too
        assert server.requests == []
        tokens = int(said.split("in about ")[1].split(" (")[0].replace(",", ""))
        plan = SAMPLE.SamplingPlan(
            folder / "questions.jsonl", folder / "evidence.jsonl", ("llm", "rag"), {"train": 4, "test": 1}
        )
        sizes = [len(answer_prompt(a.question, a.condition, a.evidence)) * (a.n + 1) / 4 for a in plan.requests()]
        assert tokens == round(sum(sizes)) and f"EUR {tokens:,}.00 by prices.yaml" in said
        sample(folder, "hosted", *address, *more, "--max-prompt-tokens", "32")  # passages are cut, as in sampling
        assert int(capsys.readouterr().out.split("in about ")[1].split(" (")[0].replace(",", "")) < 0.9 * tokens
        config = parse_args(SAMPLE.SampleConfig, ["--run", "r", *address, "--backend", "openai"])
        measured = forecast(config, plan.requests, 6).measured
        asked = Counter(json.dumps(one["messages"]) for one in server.requests)
        assert measured.prompts == len(asked) == 6 and measured.seconds > 0
        with_passages = {json.dumps([{"role": "user", "content": answer_prompt(a.question, a.condition, a.evidence)}])
                         for a in plan.requests() if a.condition == "rag"}  # fmt: skip
        assert len(with_passages & set(asked)) == 3  # half of both conditions
        every = forecast(config, plan.requests, 6).tokens_in
        server.forbids = lambda prompt: any(str(a.evidence)[:40] in prompt for a in plan.requests())
        assert forecast(config, plan.requests, 6).tokens_in > 0.8 * every  # refused ones say nothing of the others
    assert not (folder / "samples.db").exists()


@pytest.mark.parametrize("say", ["<ponder> it is {}", "upstream error", "Let me look into this question: {}"])
def test_answers_that_are_or_begin_alike_stop_the_sampling(say):
    def sets(text):
        return [SampleSet(f"q{i}", "llm", (Sample(0, text.format(i), 3, "eos", 0.0),), None, 9) for i in range(30)]

    alike, differ = AlikeAnswers(), AlikeAnswers()
    differ.add(sets("Town {}"))
    differ.add([*sets("yes"), *sets("no")])
    differ.check("here")
    drawn = tuple(Sample(i, "a", 1, "eos", 0.0) for i in range(3))
    differ.add(SampleSet(f"q{i}", "llm", drawn, None, 9) for i in range(20))
    assert differ.repeats()
    differ.add([SampleSet("r", "llm", (*drawn, Sample(3, "b", 1, "eos", 0.0)), None, 9)])
    assert not differ.repeats()
    right = AlikeAnswers(lambda: ["Yes"])
    right.add(sets("yes"))
    right.check("here")
    alike.add(sets(say)[:19])
    alike.check("here")
    alike.add(sets(say)[19:])
    with pytest.raises(UserError, match=r"^here: 100% of the answers to 30 prompts (are|begin with) "):
        alike.check("here")


def test_a_run_whose_answers_begin_alike_is_stopped_and_stays_so(monkeypatch, make_run):
    monkeypatch.setattr(ScriptedLLM, "_hashed", lambda self, request, index: f"<ponder> {request.question.id} {index}")
    folder, scripted = make_run("run"), ("--backend", "scripted", "--dtype", "auto")
    for _ in range(2):
        with pytest.raises(UserError, match=r"begin with '<ponder>'.*allow_empty: true"):
            sample(folder, "made-up", *scripted)
    sample(folder, "made-up", *scripted, "--allow-empty", "true")
