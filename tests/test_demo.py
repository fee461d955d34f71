"""The demo's chain: one definition for `make demo` and `kbtrain demo`, every command one that its script takes."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.scripts import config_class

from kbtrain.config import parse_args
from kbtrain.demo import ChainStep, benefit_tau, chain, check_passages, finish_own, follow, own_chain, run_folder
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.records import GREEDY, Evidence, Hit, Indicators, Label, Sample, SampleSet

ROOT = Path(__file__).resolve().parent.parent
SIZES = ("tiny", "demo", "full")


@pytest.mark.parametrize("size", SIZES)
def test_every_stage_takes_its_arguments_and_stays_in_the_run_folder(size, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where no run has a bill
    steps = chain(size)
    names = "collect retrieve pilot sample label build train_probe train_probe train_features score train_stack"
    names += " score end_to_end train_kbm score end_to_end classify write_report"
    names = names.replace(" score end_to_end train_kbm", " train_kbm") if size == "tiny" else names
    if size == "full":  # a KBM trained with passages, and what its second judgement is worth
        names = names.replace("train_kbm", "train_kbm build train_kbm")
        names = names.replace("classify", "classify score_reference double_judgement")
    assert [step.script for step in steps] == names.split()
    for step in steps:
        script = next(Path(word) for word in step.command() if word.endswith(f"{step.script}.py"))
        config = parse_args(config_class(script), step.arguments)
        folder = getattr(config, "run", None) or (config.runs[0] if hasattr(config, "runs") else config.output.parent)
        assert folder == run_folder(size)


def test_a_chain_shows_each_stage_with_its_minutes_and_one_line_and_ends_with_the_closing_block(
    tmp_path, capfd, monkeypatch
):
    first, last, run = tmp_path / "first.py", tmp_path / "last.py", tmp_path / "run"
    first.write_text("print('a table\\nof many lines\\n3 questions -> here')\n")
    block = [f"line {i} of the block" for i in range(7)]
    last.write_text(f"open({str(run / 'report.html')!r}, 'w')\nprint('before')\nprint(*{block!r}, sep='\\n')\n")
    said, minutes = [], itertools.count()
    monkeypatch.setattr("kbtrain.demo.time", SimpleNamespace(monotonic=lambda: 60.0 * next(minutes)))
    steps = [ChainStep(str(first), "questions", 0.1, ()), ChainStep(str(first), "answers", 0.75, ())]
    follow([*steps, ChainStep(str(last), "the report", 3, ())], run, said.append)
    shown = capfd.readouterr()
    assert shown.out.splitlines() == block and shown.err == ""
    assert "3 stages, about 4 minutes" in said[0]
    assert said[1].startswith("[1/3] ") and said[1].endswith("questions (seconds)")
    assert said[2].strip() == "3 questions -> here"
    assert said[3].endswith("answers (about a minute)")
    assert said[5].endswith("the report (about 4 minutes)") and "of many lines" not in "".join(said)
    assert "of many lines" in (run / "chain.log").read_text()


def test_a_stage_that_fails_ends_the_chain_with_its_own_words_and_code(tmp_path, capfd):
    bad = tmp_path / "bad.py"
    bad.write_text("import sys\nprint('before')\nsys.stderr.write('error: no\\n')\nsys.exit(2)\n")
    with pytest.raises(SystemExit) as found:
        follow([ChainStep(str(bad), "fails", 0.1, ())] * 2, tmp_path / "run", lambda line: None)
    shown = capfd.readouterr()
    assert found.value.code == 2 and shown.out == "before\n" and shown.err == "error: no\n"


def labelled(split, llm, rag):
    """A label of answers that are all right (True) or wrong under each condition; None: not asked."""

    def of(condition, right):
        share = float(bool(right))
        return None if right is None else Indicators(
            condition, 2, 2 * bool(right), share, share, share, 1.0, 1.0, 1.0, 1, 0, right
        )  # fmt: skip

    gain = None if rag is None else float(rag) - float(llm)
    known_rag = None if rag is None else rag
    return Label(f"{split}{llm}{rag}", split, of("llm", llm), of("rag", rag), None, 0.5, 0.5, llm, True, known_rag,
                 known_rag, gain, gain, gain, None, None)  # fmt: skip


@pytest.mark.parametrize(
    ("made", "tau"),
    [
        ([("train", False, True), ("train", True, True), ("dev", True, True)], 0.0),
        ([("train", False, True), ("train", True, False), ("dev", True, True)], 0.0),
        ([("train", True, False), ("train", True, True), ("dev", True, True)], -0.5),  # passages never help
        ([("train", False, True), ("train", False, True), ("dev", True, True)], None),  # one value alone
        ([("train", False, True), ("train", True, True), ("dev", True, None)], None),  # none in dev
        ([("train", False, None), ("train", True, None), ("dev", True, None)], None),  # never asked with any
        ([("train", False, True), ("dev", True, True), ("test", True, True)], None),
        ([], None),
    ],
)
def test_a_gate_of_own_questions_learns_benefit_where_labels_have_two_values_of_it(tmp_path, made, tau):
    assert benefit_tau(tmp_path) is None
    jsonl.write(tmp_path / "labels.jsonl", [labelled(*one) for one in made])
    assert benefit_tau(tmp_path) == tau
    steps = (step for step in own_chain(tmp_path) if step.script in ("build", "train_features"))
    one = len({llm for split, llm, _ in made if split == "train"}) == 1  # the model masters all, or nothing
    if one and tau is None:
        with pytest.raises(UserError, match="mastery and benefit are missing or the same"):
            next(steps).command()
        return
    build, fit = (parse_args(config_class(Path((words := step.command())[1])), words[2:]) for step in steps)
    assert build.keys == fit.keys == (("mastery",) if tau is None else ("mastery", "benefit")[one:])
    assert (build.tau_benefit, build.benefit_greedy) == ((0, 0) if tau is None else (tau, 1))
    (tmp_path / "cost.json.meta.json").write_text('{"schema": 1, "config": {"prices": "bill.yaml"}}')
    bill, report = own_chain(tmp_path)[-2].command(), own_chain(tmp_path, "p.yaml")[-1].command()
    assert (bill[-2:], report[-2:], build.on_leak) == (["--prices", "bill.yaml"], ["--prices", "p.yaml"], "drop")


def test_answers_of_which_each_question_has_one_are_labelled_by_it(tmp_path):
    def labelling():
        step = own_chain(tmp_path)[0]
        return parse_args(config_class(Path((words := step.command())[1])), words[2:])

    def stored(name, n):
        samples = tuple(Sample(i, "a", 1, "eos", 0.0) for i in range(n))
        with SampleStore(tmp_path / "samples.db") as store:
            store.begin("main", {"model": "m"})
            store.put("main", [SampleSet(name, "llm", samples, Sample(GREEDY, "a", 1, "eos", 0.0), 1)])

    stored("test", 0)
    assert (labelling().by, labelling().tau_mastery, labelling().verdicts) == ("greedy", "middle", False)
    (tmp_path / "verdicts.jsonl").touch()  # a judge's, which no rule replaces
    assert (labelling().by, labelling().verdicts) == ("greedy", True)
    stored("train", 2)
    assert (labelling().by, labelling().tau_certainty) == ("samples", "middle")


def test_own_questions_are_not_finished_before_their_answers_are(tmp_path):
    jsonl.write(tmp_path / "questions.jsonl", [])
    jsonl.write(tmp_path / "evidence.jsonl", [])
    SampleStore(tmp_path / "samples.db").close()
    with pytest.raises(UserError, match=r"samples\.db: some answers are missing in it; repeat the command that"):
        finish_own(tmp_path, print)


def test_own_questions_whose_passages_are_missing_or_change_no_answer_make_no_gate(tmp_path):
    def write(hits, rag):
        (tmp_path / "samples.db").unlink(missing_ok=True)
        jsonl.write(tmp_path / "evidence.jsonl", [Evidence(f"q{i}", "bm25", "q", hits if i else ()) for i in range(5)])
        with SampleStore(tmp_path / "samples.db") as store:
            store.begin("main", {"model": "m"})
            for i in range(5):
                for condition, text in (("llm", "a"), ("rag", rag if i == 2 else "a")):
                    store.put("main", [SampleSet(f"q{i}", condition, (), Sample(GREEDY, text, 1, "eos", 0.0), 1)])

    hit = (Hit("1", "", "text", 1.0),)
    write((), "b")
    with pytest.raises(UserError, match="the search found nothing for all 5 questions"):
        check_passages(tmp_path)
    write(hit, "b")
    (line,) = check_passages(tmp_path)
    assert line.startswith("warning: the search found nothing for 1 of 5 questions: ")
    write(hit, "a")
    with pytest.raises(UserError, match=r"samples\.db: 5 questions have the same answer with and without passages"):
        check_passages(tmp_path)
