"""benchmarks/sampling.py runs on a tiny model; its limit and its table are what hand-work gives."""

import json
import sys
from pathlib import Path

import pytest
from support import scripts
from tiny_kbm import make_byte_model

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"
sys.path.append(str(FOLDER))

from sampling_limit import Machine, Work, byte_seconds, least_seconds, operation_seconds, operations  # noqa: E402
from sampling_table import Measured, check, rates, report  # noqa: E402

MACHINE = Machine("fp32", 1, 4, 100, 10, 6, 24, (1000.0, 2000.0), (500.0, 250.0), 1e4)
WORK = Work([3, 5], n=2, tokens=3.0, longest=4, batches=1)


def test_operations_are_those_counted_by_hand():
    found = operations(MACHINE, WORK)
    assert found["prefill"] == 2 * 100 * 8
    assert found["prefill_attention"] == 4 * 6 * (1 + 2 + 3) + 4 * 6 * (1 + 2 + 3 + 4 + 5)
    assert found["prefill_head"] == 2 * 10 * 2
    assert found["decode"] == 2 * 100 * 4 * 2  # 4 answers, 2 of 3 tokens fed back
    assert found["decode_attention"] == 4 * 6 * 2 * ((3 + 1) + (3 + 2) + (5 + 1) + (5 + 2))
    assert found["decode_head"] == 2 * 10 * 4 * 2


def test_the_limit_is_the_larger_of_operations_and_bytes():
    seconds = operation_seconds(MACHINE, WORK)
    assert seconds["prefill"] == pytest.approx(0.8) and seconds["decode"] == pytest.approx(1.6)
    assert seconds["prefill_head"] == pytest.approx(0.16) and seconds["decode_head"] == pytest.approx(0.32)
    assert byte_seconds(MACHINE, WORK) == pytest.approx((110 * 4 * 4 + 24 * 8 * 3) / 1e4)
    assert least_seconds(MACHINE, WORK) == pytest.approx(sum(seconds.values()))


def reply(seconds, tokens):
    return {"seconds": seconds, "n_prompt_tokens": 8, "n_answers": 4, "n_tokens": tokens}


def test_ratios_are_of_seconds_a_question_over_all_rounds():
    replies = {"kbtrain_llm": [reply(1.0, 12), reply(3.0, 12)], "hf_generate": [reply(50.0, 12)]}
    text, numbers = report([Measured("short", True, replies, MACHINE, WORK)])
    assert rates(replies["kbtrain_llm"], 2)["seconds_a_question"] == 1.0
    assert numbers[0]["peers"]["hf_generate"]["times_ours"] == 25.0
    assert "short: 25.0 times HF generate; target 4: met" in text
    assert "vLLM was not measured" in text


def test_peers_that_did_other_work_are_not_compared():
    with pytest.raises(AssertionError, match="wrote 12 tokens"):
        check(Measured("long", False, {"hf_generate": [reply(1.0, 12)]}, MACHINE, WORK))
    fewer = reply(1.0, 12) | {"n_prompt_tokens": 7}
    with pytest.raises(AssertionError, match="read 7 prompt tokens"):
        check(Measured("short", True, {"hf_generate": [fewer]}, MACHINE, WORK))


def test_the_benchmark_runs_on_a_tiny_model(tmp_path):
    output = tmp_path / "bench" / "sampling.json"
    for part in make_byte_model(initializer_range=0.1):
        part.save_pretrained(tmp_path / "tiny")
    given = ("--quick", "--model", tmp_path / "tiny", "--dtype", "fp32", "--output", output)
    run = scripts.run("benchmarks/sampling.py", *given, nested=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("| prompts |") and run.stdout.count("HF generate |") == 3
    found = json.loads(output.read_text())
    assert [part["setting"] for part in found["settings"]] == ["long", "short", "short_no_stops"]
    for part in found["settings"]:
        assert part["peers"]["kbtrain_llm"]["tokens_an_answer"] <= 3
        assert part["limit"]["seconds_a_question"] > 0


def test_a_dead_peer_is_one_line_that_names_its_log(tmp_path):
    given = ("--quick", "--model", tmp_path, "--output", tmp_path / "out.json")
    run = scripts.run("benchmarks/sampling.py", *given, nested=True)
    assert run.returncode == 2
    assert run.stderr.strip().splitlines() == [
        f"error: peer 'machine' ended with code 1; see {tmp_path / 'machine.log'}"
    ]
