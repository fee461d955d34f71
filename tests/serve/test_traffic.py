"""A threshold from the decision log, by hand and end to end; and the log itself: rotation, torn lines."""

import gzip
import json
import shutil

import numpy as np
import pytest
from serve_support import KNOWN, NEEDS, serving

from kbtrain.cli import main
from kbtrain.errors import UserError
from kbtrain.gate import card as card_module
from kbtrain.gate.card import CARD, Threshold, read_gate_json, set_threshold
from kbtrain.gates.handles import gate_identity
from kbtrain.gates.question_shift import dev_questions
from kbtrain.report.traffic import calibrate_traffic, read_log, read_traffic, roll_back, threshold_of
from kbtrain.serve.decision_log import DecisionLog


@pytest.fixture
def folder(gate, tmp_path):
    return shutil.copytree(gate, tmp_path / "probe")


def write(path, scores, gate):
    rows = ({"time": 1e9 + i, "gate": gate, "score": score} for i, score in enumerate(scores))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_threshold_searches_for_the_wanted_share(folder, tmp_path):
    name = f"encoder_probe@{gate_identity(folder)}"
    log = write(tmp_path / "log.jsonl", [i / 100 for i in range(100)], name)
    with open(log, "a") as file:
        file.write('{"gate": "other@0", "score": 0.5}\n' + json.dumps({"gate": name, "score": None}) + "\n")
        file.write(json.dumps({"gate": name, "score": float("inf")}) + "\n")
        for decided in ({"reason": "greeting"}, {"reason": "policy", "rule": "arithmetic"}):  # whatever the score
            file.write(json.dumps({"gate": name, "score": 0.999, "searched": False, **decided}) + "\n")
    lines = calibrate_traffic(folder, log, 0.3)
    noted = read_gate_json(folder)["thresholds"]["encoder_probe"]
    assert noted["threshold"] == pytest.approx(0.695) == threshold_of([i / 100 for i in range(100)], 0.3)
    assert (noted["rule"], noted["n_dev"]) == ("ratio 0.3 of logged traffic", 100)
    assert noted["evidence"]["dev_scores"][0] == 0.01  # what dev said stays
    assert "100 scores" in lines[0] and "1 of other gates or versions, 2 without a score" in lines[0]
    assert "skipped: 2 decided by a rule, not by a score, 1 of" in lines[0]
    assert "distributed as on dev" in lines[1] and "49.0% of them" in lines[2]
    assert "30.0% of them" in lines[3] and "--rollback" in lines[-1]
    for place in ("states", "checkpoints/checkpoint-2"):
        (folder / place).mkdir(parents=True)
        shutil.copy(next(folder.glob("*.safetensors")), folder / place)
    assert gate_identity(folder) == name.partition("@")[2]  # thresholds are no part of it, nor what training left


@pytest.mark.parametrize(
    ("evidence", "dev"),
    [
        ({}, {}),
        ({}, {"scores": [0.1, 0.9]}),
        (
            {"retrieval_ratio": 0.4, "accuracy": 0.7, "dev_scores": [0.1], "guarantee": {"limit": 0.1, "delta": 0.1}},
            {"questions": {"n": 2}},
        ),
    ],
)  # fmt: skip
def test_a_threshold_from_traffic_promises_nothing_that_dev_said_of_another(folder, tmp_path, evidence, dev):
    (folder / "README.md").write_text("# A gate\n")
    was = Threshold(threshold=0.5, rule="on dev", dev_file_sha256="", n_dev=2, evidence=evidence, dev=dev)
    set_threshold(folder, "encoder_probe", was)
    log = write(tmp_path / "log.jsonl", [i / 100 for i in range(100)], f"encoder_probe@{gate_identity(folder)}")
    for repeat in (False, True):  # a second time from one that came from traffic itself
        if was.promise and not repeat:
            with pytest.raises(UserError, match=r"has threshold 0\.5 \(.*\), which promises: at most 10 points"):
                calibrate_traffic(folder, log, 0.3)
            assert "this promise ends" in calibrate_traffic(folder, log, 0.3, dry_run=True)[-1]
        calibrate_traffic(folder, log, 0.3, replace=True)
        noted = Threshold.model_validate(read_gate_json(folder)["thresholds"]["encoder_probe"])
        assert not noted.promise and "accuracy" not in noted.dev
        assert set(noted.evidence) <= {"dev_scores", "traffic", "before"}
        assert noted.dev_scores == was.dev_scores and noted.dev.get("questions") == dev.get("questions")
        assert (folder / "README.md").read_text() == (
            "# A gate\n\n## Threshold\n- `encoder_probe`: search if score > 0.695 (rule ratio 0.3 of logged traffic, "
            "100 logged questions)\n"
        )
    assert main(["calibrate", str(folder), "--rollback"]) == 0  # past both calibrations
    assert Threshold.model_validate(read_gate_json(folder)["thresholds"]["encoder_probe"]) == was
    with pytest.raises(UserError, match=r"nothing to roll back .*'kbtrain run calibrate' again"):
        roll_back(folder)


def test_shifted_scores_are_warned_of_and_check_changes_nothing(folder, tmp_path):
    log = write(tmp_path / "log.jsonl", np.linspace(0.8, 0.9, 80).tolist(), f"encoder_probe@{gate_identity(folder)}")
    before = (folder / "gate.json").read_text()
    assert any(line.startswith("warning: scores") for line in calibrate_traffic(folder, log, None))
    assert (folder / "gate.json").read_text() == before


def test_too_few_scores_of_this_gate_are_an_error(folder, tmp_path):
    log = write(tmp_path / "log.jsonl", [0.5] * 60, "encoder_probe@0123456789ab")
    with pytest.raises(UserError, match="0 turns of this gate, 50 needed; skipped: 60 of other gates or versions"):
        calibrate_traffic(folder, log, 0.3)
    with pytest.raises(UserError, match=r"none\.jsonl: no such file"):
        calibrate_traffic(folder, tmp_path / "none.jsonl", 0.3)
    log.write_text('{"question": "Who?"}\n')
    with pytest.raises(UserError, match="no row has a score; expected the decision log of kbtrain serve"):
        calibrate_traffic(folder, log, 0.3)
    log.write_text("{")
    with pytest.raises(UserError, match=r"log\.jsonl:1: broken JSON"):
        calibrate_traffic(folder, log, 0.3)


def test_from_the_server_s_log_by_the_command_to_the_server_again(folder, tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    with serving(folder, log=log) as server:
        for _ in range(2):
            assert server.post("/v1/gate", {"questions": [NEEDS, KNOWN] * 20}).status == 200
    assert main(["calibrate", str(folder), "--log", str(log), "--ratio", "0"]) == 0
    out = capsys.readouterr().out
    assert "search if score > " in out and "A thousand questions: 0 searches, 0.00 USD" in out
    assert main(["calibrate", str(folder), "--log", str(log), "--ratio", "0.6", "--dry-run"]) == 0
    out = capsys.readouterr().out  # the nearest share that can be attained
    assert ": 50.0% of them" in out and "A thousand questions: 500 searches" in out
    with serving(folder) as server:
        assert not server.post("/v1/gate", {"questions": [NEEDS]}).json["decisions"][0]["retrieve"]
        budget = server.post("/v1/gate", {"questions": [KNOWN], "budget": 1}).json["decisions"][0]
        assert budget["retrieve"]
    for wrong in ([], ["--ratio", "2"], ["--ratio", "nan"], ["--ratio", "0.5", "--check"], ["--check", "--rollback"]):
        assert main(["calibrate", str(folder), "--log", str(log), *wrong]) == 2


def test_a_log_is_rotated_by_size_and_read_in_order(tmp_path):
    log = DecisionLog(tmp_path / "log[1].jsonl", 0.001, 2)
    for i in range(60):
        assert log.write({"i": i, "time": i, "pad": "x" * 60}, None, False)
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log[1].jsonl", "log[1].jsonl.1", "log[1].jsonl.2"]
    assert all(path.stat().st_size <= 0.001 * 2**20 for path in tmp_path.iterdir())
    numbers = [row["i"] for row in read_log(tmp_path / "log[1].jsonl")]
    assert numbers == list(range(numbers[0], 60)) and numbers[0] > 0
    plain = tmp_path / "log[1].jsonl.2"
    packed, oldest, whole = plain.with_suffix(".2.gz"), plain.read_bytes(), gzip.compress(plain.read_bytes())
    last = json.loads(oldest.splitlines()[-1])["i"]
    newer = b'{"i": -1, "time": %f}\n' % (last + 0.5)  # rotated after the older one was packed
    for beside, there, extra in (
        (whole, oldest, []), (whole[:10], oldest, []), (whole, None, []), (whole, newer, [-1]),
    ):  # fmt: skip
        packed.write_bytes(beside)  # the plain one is removed only afterwards
        plain.write_bytes(there) if there else plain.unlink()
        place = numbers.index(last) + 1
        assert [row["i"] for row in read_log(tmp_path / "log[1].jsonl")] == [*numbers[:place], *extra, *numbers[place:]]
    twin = oldest.splitlines()[0] + b'\n{"i": -2, "time": 0}\n'  # begins as another file, and is none
    plain.with_suffix(".3.gz").write_bytes(gzip.compress(twin))
    assert -2 in [row["i"] for row in read_log(tmp_path / "log[1].jsonl")]
    plain.unlink()
    packed.write_bytes(whole[:10])
    with pytest.raises(UserError, match=r"log\[1\]\.jsonl\.2\.gz: "):
        list(read_log(tmp_path / "log[1].jsonl"))


@pytest.mark.parametrize(
    ("field", "value"), [ *(("score", value) for value in ("high", True, [0.5])),
    *(("time", value) for value in ("now", -1, 1e300, float("inf"))),
    *(("searched", value) for value in ("false", "true", 0)), *( (field, value)
    for field in ("gate", "id", "question", "question_hash", "reason") for value in ([], {"a": 1}, 7) ),
    *(("propensity", "0.5"), ("score", 10**400), ("question", "\ud800")), ],
)  # fmt: skip
def test_a_field_of_another_type_is_one_line(tmp_path, field, value):
    path = tmp_path / "log.jsonl"
    path.write_text('{"score": 0.5, "time": 1.0, "searched": null}\n' + json.dumps({"score": 1, field: value}))
    with pytest.raises(UserError, match=rf"log\.jsonl:2: field '{field}': ") as error:
        list(read_log(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("torn", ['{"i": 1, "pa', "x" * 100_000, ""])
def test_a_torn_last_line_is_cut_off(tmp_path, torn):
    path = tmp_path / "log.jsonl"
    path.write_text('{"i": 0}\n' + torn)
    log = DecisionLog(path, 1, 2)
    log.write({"i": 1}, None, False)
    log.close()
    assert path.read_text() == '{"i": 0}\n{"i": 1}\n'


def test_questions_of_another_kind_are_found_in_a_log_without_texts(folder, tmp_path, capsys):
    data = json.loads((folder / CARD).read_text())
    dev = [f"Tell me about the {what} {i}" for i in range(60) for what in ("museum", "theatre")]
    data["thresholds"]["encoder_probe"]["dev"] = {"questions": dev_questions(dev)}
    (folder / CARD).write_text(json.dumps(data))
    log = tmp_path / "log.jsonl"
    with serving(folder, log=log, batch=250, gate_deadline_s=100) as server:
        treaties = [f"Why was the treaty of {1400 + i} signed by so many envoys?" for i in range(250)]
        for asked in (dev * 2, treaties):
            assert server.post("/v1/gate", {"questions": asked}).status == 200
    rows = list(read_log(log))
    assert rows[0]["asked"]["kind"] == "other" and rows[-1]["asked"]["kind"] == "why"
    assert "treaty" not in log.read_text() and "museum" not in log.read_text()
    assert main(["calibrate", str(folder), "--log", str(log), "--check"]) == 0
    assert "warning: 370 new questions are of another kind than the 120 dev questions" in capsys.readouterr().out
    assert main(["calibrate", str(folder), "--log", str(log), "--ratio", "0.3"]) == 0
    assert read_gate_json(folder)["thresholds"]["encoder_probe"]["dev"]["questions"]["n"] == 120


def test_shares_of_searches_are_of_requests_and_shifts_of_questions(folder, tmp_path):
    """Zipf's law over 400 questions: counted by their requests, a few of them would look like a shift."""
    rng, weight = np.random.default_rng(0), 1 / np.arange(1, 401)
    asked = rng.choice([f"Tell me about museum {i}" for i in range(400)], 250, p=weight / weight.sum())
    log = tmp_path / "log.jsonl"
    with serving(folder, log=log, batch=250, gate_deadline_s=100) as server:
        assert server.post("/v1/gate", {"questions": asked.tolist()}).status == 200
    line, shifted, *_ = calibrate_traffic(folder, log, 0.3)
    assert f"250 scores of {len(set(asked))} questions" in line and f"{len(set(asked))} new" in shifted
    traffic = read_gate_json(folder)["thresholds"]["encoder_probe"]["evidence"]["traffic"]
    assert len(traffic["scores"]) == 250
    with serving(folder) as server:
        assert len(server.service.decider.loaded.dev_scores) == 250


def test_numbers_of_questions_that_are_none_are_left_out(folder, tmp_path):
    name = f"encoder_probe@{gate_identity(folder)}"
    asked = [{"kind": [], "words": 3}, {"kind": "who", "words": "3"}, {"kind": "who", "words": 3}, 7, None]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"gate": name, "score": 0.5, "asked": asked[i % 5]}) + "\n" for i in range(60)))
    assert read_traffic(folder, log).questions == ({"kind": "who", "words": 3},) * 12


@pytest.mark.parametrize(
    "part",
    [
        {"dev": {"questions": []}}, {"dev": {"questions": {"n": 0}}}, {"dev": {"scores": ["high"]}},
        {"evidence": {"guarantee": {"limit": "small"}}}, {"evidence": {"dev_scores": 3}},
        {"evidence": {"retrieval_ratio": "half"}},
    ],
)  # fmt: skip
def test_a_card_whose_threshold_holds_what_it_cannot_is_one_line(folder, tmp_path, part, capsys):
    card = read_gate_json(folder)
    card["thresholds"] = {"encoder_probe": {"threshold": 0.5, "rule": "r", "dev_file_sha256": "", "n_dev": 2, **part}}
    (folder / CARD).write_text(json.dumps(card))
    log = write(tmp_path / "log.jsonl", [i / 100 for i in range(100)], "encoder_probe@0")
    assert main(["calibrate", str(folder), "--log", str(log), "--check"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "gate.json" in said and "thresholds" in said


def test_a_rollback_to_what_is_no_threshold_is_one_line(folder):
    was = Threshold(threshold=0.5, rule="r", dev_file_sha256="", n_dev=2, evidence={"before": {"threshold": "x"}})
    set_threshold(folder, "encoder_probe", was)
    with pytest.raises(UserError, match=r"gate\.json: field 'before': "):
        roll_back(folder)


def test_a_rollback_that_is_killed_is_done_by_the_same_command(folder, monkeypatch):
    (folder / "README.md").write_text("# A gate\n")
    before = {"threshold": 0.2, "rule": "first", "dev_file_sha256": "", "n_dev": 2}
    was = Threshold(threshold=0.5, rule="r", dev_file_sha256="", n_dev=2, evidence={"before": before})
    set_threshold(folder, "encoder_probe", was)
    write_whole = card_module.write_atomically

    def killed(path, text):
        write_whole(path, text)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(card_module, "write_atomically", killed)
        roll_back(folder)
    roll_back(folder)
    assert read_gate_json(folder)["thresholds"]["encoder_probe"]["threshold"] == 0.2
    assert "score > 0.2 (rule first" in (folder / "README.md").read_text()
