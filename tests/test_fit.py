"""``kbtrain fit``: from a file of questions to a decision, both forms, killed and resumed."""

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from model_server import ModelServer
from support import scripts
from test_own_data import replies, write_files

import kbtrain
from kbtrain.demo import ChainStep
from kbtrain.errors import UserError
from kbtrain.evaluation.search_pilot import SearchSetting, SettingResult, planning_line, reach
from kbtrain.fit_questions import (
    KS,
    Fit,
    _import_steps,
    _requests,
    _search_steps,
    agree,
    compare_answers,
    decision,
    fit_questions,
    needed_questions,
    next_command,
    search_lines,
    server_config,
)
from kbtrain.metrics.significance import Delta
from kbtrain.metrics.thresholds import Dev, control
from kbtrain.questions.base import Columns, Reading
from kbtrain.questions.catalogue import load as load_questions
from kbtrain.questions.columns import propose_columns
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.server import startup_lines
from kbtrain.serve.service import Service

ROOT = Path(__file__).resolve().parent.parent
SIZES = (75, 150, 300, 600, 1200)  # test questions: a quarter of 300 to 4,800


def command(folder, url, *more):
    words = ("fit", "questions.jsonl", "--server", url, "--corpus", "passages.jsonl", "--run", "runs/mine", *more)
    return scripts.start("-m", "kbtrain.cli", *words, cwd=folder, nested=True)


def test_one_command_leads_from_two_files_to_a_decision_and_resumes_after_a_kill(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ModelServer(logprobs=False, missing=("completions",), say=replies(write_files(tmp_path))) as server:
        with (tmp_path / "questions.jsonl").open("a") as file:
            file.write('{"prompt": "Who knows?", "gold": ""}\n')
        first = command(tmp_path, server.url)
        first.wait()
        shown, error = first.stdout, first.stderr
        assert error.splitlines()[-1].startswith("error: stopped after the forecast: there is no terminal to ask; ")
        assert "test questions measure a difference of right answers to ±" in shown and "cannot promise" in shown
        assert "1 whose answers are all empty or placeholders (first at questions.jsonl:" in shown + error
        assert "0 passages" not in shown + error
        for name in ("requests", "tokens", "money", "time"):
            assert any(line.startswith(f"{name}  ") for line in shown.splitlines()), name
        assert not (tmp_path / "runs/mine/pilot").exists()
        checked, server.delay = len(server.requests), 0.02
        begun = command(tmp_path, server.url, "--yes")
        while len(server.requests) < checked + 400:  # the pilot is over
            assert begun.poll() is None
            time.sleep(0.05)
        stages = psutil.Process(begun.pid).children(recursive=True)
        begun.kill()  # the stage ends with it
        begun.wait()
        assert stages and not psutil.wait_procs(stages, timeout=60)[1]
        before, server.delay = len(server.requests), 0.0
        assert (tmp_path / "runs/mine/samples.db").exists()
        again = command(tmp_path, server.url)
        assert again.wait() == 0, again.stderr
    shown = again.stdout
    block = dict(line.split("  ", 1) for line in shown.splitlines() if "  " in line)
    assert "requests" not in block and "money" not in block  # agreed to before
    names = ("does your search help?", "never searching", "always searching", "repaired by a search", "decision")
    assert all(name in block for name in names)
    assert block["decision"].strip().startswith("Use the gate")
    follows = f"runs/mine/features --upstream {server.url} --prompt trained --policy always --log decisions.jsonl;"
    assert any(line.startswith("next") and follows in line for line in shown.splitlines())
    assert (tmp_path / "runs/mine/report.html").is_file()
    assert len(server.requests) - before < before - checked  # what was answered is not asked again
    assert "100 greedy answers are the pilot's" in (tmp_path / "runs/mine/chain.log").read_text()
    monkeypatch.chdir(tmp_path)
    settings = Fit(Path("questions.jsonl"), Path("runs/mine"))
    assert not [*_requests(settings, "pilot"), *_requests(settings, "sample")]  # nor forecast
    Path("runs/mine/pilot/samples.db").unlink()
    pilot = list(_requests(settings, "pilot"))
    assert len(pilot) == len({request.question.id for request in pilot}) * (1 + len(KS))
    assert all(request.greedy and not request.n for request in pilot)
    assert {"pilot", "sample"} == json.loads(Path("runs/mine/fit.json").read_text())["paces"].keys()


def write_answers(folder, breaks):
    """160 questions: the model knows the capitals, passages help with the codes, and ``breaks``: spoil capitals."""
    path, lines = folder / "answers.csv", ["prompt,gold,plain,with_passages"]
    for i in range(160):
        capital, noise = i % 2 == 0, i % 10 == 1
        text = f"What is the {'capital of the famous' if capital else 'code of the internal'} thing {i}?"
        helped = i % 4 == 0 if capital and breaks else not noise
        lines.append(f"{text},ans{i},{f'ans{i}' if capital else 'no'},{f'it is ans{i}' if helped else 'no idea'}")
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


ANSWERS = {"llm": "plain", "rag": "with_passages"}


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    monkeypatch.setattr(ChainStep, "run", scripts.stage_here)


def test_answers_that_are_there_make_a_gate_without_a_model(tmp_path, capsys):
    path = write_answers(tmp_path, breaks=True)
    path.write_text(path.read_text() + "Who knows?,,this,that\n")
    made = kbtrain.fit(path, tmp_path / "run", answers=ANSWERS, model="gpt")
    assert made.gate is not None and made.results is not None and made.decision.startswith("Use the gate")
    capital, code = made.gate.decide(
        ["What is the capital of the famous thing 7?", "What is the code of the internal 9?"]
    )
    assert (capital.retrieve, code.retrieve) == (False, True)
    shown = capsys.readouterr().err
    assert "broken by a search" in shown and f'kbtrain decide {tmp_path / "run/features"} "a question"' in shown
    trial = f"own-program.md): kbtrain serve {tmp_path / 'run/features'} --policy always --log decisions.jsonl; after a"
    assert trial in shown and "--prompt trained" not in shown
    assert "warning: rows skipped that have no reference answer" in shown and f"{path}:162" in shown
    served = {"gate": tmp_path / "run/features", "upstream": "http://127.0.0.1:9/v1", "search": "none"}
    with pytest.raises(UserError, match=r"key 'prompt': .* not known; ask the gate from your own program"):
        Service(ServeConfig(**served, prompt="trained"))
    said = "\n".join(startup_lines(Service(ServeConfig(**served))))
    assert "not known: ask the gate from your own" in said and "trained" not in said
    given = ("--gate", made.gate.name, "--goal", "given", "--threshold", "-9")
    assert scripts.here("eval/calibrate.py", "--run", tmp_path / "run", *given).returncode == 0
    made = kbtrain.fit(path, tmp_path / "run", answers=ANSWERS, model="gpt")
    assert made.decision == "Always search: the gate does the same for every question."  # at the threshold it has now


def test_a_search_that_only_helps_or_harms_ends_with_advice(tmp_path, capsys):
    made = kbtrain.fit(write_answers(tmp_path, breaks=False), tmp_path / "run", answers=ANSWERS)
    assert made.gate is None and made.results is None and made.decision.startswith("A search helps: it repairs ")
    with pytest.raises(UserError, match=r"samples\.db: 160 questions have .*; both columns hold the same text; name"):
        kbtrain.fit(tmp_path / "answers.csv", tmp_path / "same", answers={"llm": "plain", "rag": "plain"})
    kbtrain.fit(tmp_path / "answers.csv", tmp_path / "turned", answers={"llm": "with_passages", "rag": "plain"})
    assert "next: do not search; should passages help? Then see that --answers" in capsys.readouterr().err
    assert not (tmp_path / "run/labels.jsonl").exists()
    rows = scripts.here("data_gen/judge.py", "--run", tmp_path / "run", "--judge", "rules")
    assert rows.returncode == 0, rows.stderr
    verdicts = tmp_path / "run/verdicts.jsonl"
    verdicts.write_text(verdicts.read_text().replace("true", "false"), encoding="utf-8")  # a judge's word, here as well
    assert [result.right for result in compare_answers(tmp_path / "run")] == [0, 0]


def test_too_few_questions_are_refused_before_anything_is_made_of_them(tmp_path):
    whole = write_answers(tmp_path, breaks=True).read_text().splitlines()
    for n, train in ((1, r"\d"), (40, "17")):
        (tmp_path / f"{n}.csv").write_text("\n".join([whole[0], *whole[-n:]]))
        with pytest.raises(
            UserError, match=rf"{n}\.csv: {train} of {n} questions train the gate; fit needs 20 of these"
        ):
            kbtrain.fit(tmp_path / f"{n}.csv", tmp_path / str(n), answers=ANSWERS)
        assert not (tmp_path / f"{n}/labels.jsonl").exists()


@pytest.mark.parametrize(
    ("lines", "says"),
    [(None, "c.jsonl: "), ("", "the corpus is empty"), ('{"body": "a"}\n{"b": "c"}\n', "c.jsonl:2: field 'body'")],
)
def test_a_corpus_that_cannot_be_searched_is_found_before_the_server_is_asked(tmp_path, capsys, lines, says):
    path, corpus = write_answers(tmp_path, breaks=True), tmp_path / "c.jsonl"
    if lines is not None:
        corpus.write_text(lines)
    with ModelServer() as server, pytest.raises(UserError) as error:
        kbtrain.fit(path, tmp_path / "run", server=server.url, corpus=corpus)
    assert says in str(error.value) + capsys.readouterr().err and not server.requests


@pytest.mark.parametrize("more", [{"answers": json.dumps(ANSWERS)}, {"corpus": Path("passages.jsonl")}])
def test_questions_of_one_document_stay_in_one_split(tmp_path, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "passages.jsonl").write_text('{"text": "a passage"}\n')
    head, *rows = write_answers(tmp_path, breaks=True).read_text().splitlines()
    Path("grouped.csv").write_text("\n".join([f"{head},doc", *(f"{row},d{i // 4}" for i, row in enumerate(rows))]))
    settings = Fit(Path("grouped.csv"), Path("run"), group_by="doc", **more)
    steps = _import_steps if settings.answers else _search_steps
    assert steps(settings, json.dumps(propose_columns(settings.file)))[0].run()[0] == 0
    splits = [json.loads(line)["split"] for line in Path("run/questions.jsonl").read_text().splitlines()]
    of_documents = [set(splits[i : i + 4]) for i in range(0, 160, 4)]
    assert all(len(names) == 1 for names in of_documents) and len(set().union(*of_documents)) == 3


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, "give --corpus and --server"),
        ({"corpus": Path("p"), "server": "s", "config": Path("c")}, "give --corpus and --server"),
        ({"corpus": Path("p"), "config": Path("c"), "model": "m"}, "--model: c names the model"),
        ({"answers": "{llm: a, rag: b}", "server": "s", "samples": 4}, "sends no requests; remove --server, --samples"),
        ({"answers": "{llm: a, rag: b}", "gate": "by_sorce"}, "unknown gate 'by_sorce'; did you mean 'by_source'"),
    ],
)
def test_options_that_leave_open_what_is_asked_are_one_line(more, says):
    with pytest.raises(UserError, match=says):
        fit_questions(Fit(Path("q.jsonl"), Path("run"), **more), lambda line: None)


def test_columns_are_proposed_by_their_usual_names(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({"nr": 1, "user_query": "a?", "ground_truth": "b"}) + "\n")
    assert propose_columns(path) == {"text": "user_query", "answers": "ground_truth"}
    for theirs, gold in {"answer": "ground_truth", "response": "reference", "label": "target"}.items():
        path.write_text(json.dumps({"question": "a?", theirs: "of a model", gold: "b"}) + "\n")
        assert propose_columns(path)["answers"] == gold
    path.write_text(json.dumps({"question": "a?", "answer": "of a model", "solution": "b"}) + "\n")
    assert propose_columns(path, {"answer"})["answers"] == "solution"
    path.write_text(json.dumps({"question": "a?", "answer": "b", "answer_aliases": ["c"]}) + "\n")
    assert propose_columns(path)["answers"] == ["answer", "answer_aliases"]
    path.write_text(json.dumps({"question": "a?", "text": "a passage", "answer": "b"}) + "\n")
    with pytest.raises(UserError, match="there is 'question', too; choose one"):
        propose_columns(path)
    rows = ['{"query": "a?", "solved": "b"}', '{"query": "a?", "answer": "b"}', '{"query": "a?"}']
    other = '{"about": {"a": 1}, "long": "no question at all", "words": "a?", "user_says": "why", "gold": "b"}'
    for name, lines, says in (
        ("q.jsonl", rows[:1], r":1: .*There is query, solved; name it: --columns .*answers: solved"),
        ("q.jsonl", [other], r":1: field 'text': which column is it\?.*--columns .{text: words, answers: gold"),
        ("q.jsonl", ['{"anfrage": "a?", "verlauf": "Hi? a?", "jahr": 1989}'], "--columns .{text: anfrage, answers: "),
        ("q.jsonl", ['{"query": "a?", "jahr": 1989, "about": {"a": 1}}'], "--columns .{text: query, answers: jahr}"),
        ("q.jsonl", rows[1:], r":2: field 'answer': missing in 1 of the first 2 rows; there is query; write \"\""),
        ("q.jsonl", [rows[2], rows[2], rows[1]], ":1: field 'answer': missing in 2 of the first 3 rows"),
        ("q.jsonl", rows[2:], ":1: .*no column has reference answers, which are needed; .*audit.md"),
        ("q.csv", ["Who?,Ann", "Where?,here"], r"q\.csv:1: looks like a question; put the columns' names above it"),
        ("q.xlsx", rows[2:], "a spreadsheet; save it as CSV"),
    ):
        (tmp_path / name).write_text("\n".join(lines))
        with pytest.raises(UserError, match=says):
            propose_columns(tmp_path / name)
    for n_sources, read in ((2, True), (1, False), (9, False)):  # one tells nothing, many are often addresses
        lines = (f"a {i}?,b,s{i % n_sources}" for i in range(40))
        (tmp_path / "s.csv").write_text("\n".join(["question,answer,source", *lines, "a?,b,"]))
        assert ("source" in propose_columns(tmp_path / "s.csv")) == read
    rows = [{"question": f"a {i}?", "answer": "b", "source": f"s{i % 2}"} for i in range(40)]
    for more, read in (({}, True), ({"source": None}, True), ({"source": 7}, False)):
        jsonl = tmp_path / "s.jsonl"
        jsonl.write_text("\n".join(map(json.dumps, [*rows, {"question": "a?", "answer": "b", **more}])))
        assert ("source" in (columns := propose_columns(jsonl))) == read
        assert [one.question.source for one in load_questions("jsonl", jsonl, Reading(columns=Columns(columns)))][
            -1
        ] == ""


def arm(accuracy, ratio, over_always, over_never):
    over = Delta(*over_always), Delta(*over_never)
    return SimpleNamespace(accuracy=accuracy, retrieval_ratio=ratio, n=75, delta_vs_all_rag=over[0],
                           delta_vs_llm_only=over[1])  # fmt: skip


@pytest.mark.parametrize(
    ("gate", "never", "always", "says"),
    [
        (arm(0.6, 0.5, (0.1, 0.02, 0.2), (0.2, 0.1, 0.3)), 0.4, 0.5, "Use the gate: it skips 50.0 % of the searches"),
        (arm(0.6, 1.0, (0.0, 0.0, 0.0), (0.2, 0.1, 0.3)), 0.4, 0.6, "Always search: the gate does the same"),
        (arm(0.5, 0.4, (0.1, 0.02, 0.2), (-0.1, -0.2, 0.0)), 0.6, 0.4, "Never search: 60.0 % are right without"),
        (arm(0.4, 1.0, (0.0, 0.0, 0.0), (-0.2, -0.3, 0.0)), 0.6, 0.4, "Never search: 60.0 % are right without"),
        (arm(0.4, 0.0, (-0.2, -0.3, -0.1), (0.0, 0.0, 0.0)), 0.4, 0.6, "Always search: the gate loses right answers"),
        (arm(0.6, 0.7, (0.0, -0.01, 0.01), (0.2, 0.1, 0.3)), 0.4, 0.6, "Use the gate to save searches: it skips 30.0"),
        (arm(0.6, 0.7, (0.0, -0.05, 0.05), (0.2, 0.1, 0.3)), 0.4, 0.6, "Not decided, always search so far: it skips"),
        (arm(0.55, 0.7, (0.05, -0.05, 0.15), (0.15, 0.1, 0.3)), 0.4, 0.5, "Not decided, always search so far: "),
    ],
)
def test_the_decision_follows_the_better_of_never_and_always(gate, never, always, says):
    made = decision(gate, arm(never, 0, (0, 0, 0), (0, 0, 0)), arm(always, 1, (0, 0, 0), (0, 0, 0)))
    assert made.startswith(says)
    # half the interval is twice the difference
    assert ("about 300 questions would decide it" in made) == (gate.accuracy == 0.55)
    unsure = gate.delta_vs_all_rag.low == -0.05 and gate.accuracy == 0.6
    assert ("more than 2 points is not ruled out by these" in made) == unsure


@pytest.mark.parametrize(
    ("n", "flat", "says", "lacks"),
    [  # of the upper half a search repairs all answers, of the lower none
        (20, False, "at least 59 dev questions; there are 20. Add about 156 questions", "calibrate"),
        (30, False, "--max-loss 0.1 (50.0 % skipped on dev, at most 10 points lost with probability 0.9). To", "0.05"),
        (59, False, "--goal max_loss --max-loss 0.05 (50.8 % skipped on dev, at most 5 points", "Add about"),
        (59, True, "none can be promised with at most 10 points lost", "calibrate"),
    ],
)
def test_fewer_searches_are_proposed_with_the_smallest_promise_that_saves_any(n, flat, says, lacks):
    scores, helped = np.arange(n), 1.0 * (np.arange(n) >= n / 2)
    dev = Dev(scores * (not flat), 1 - helped, np.ones(n))
    gate = SimpleNamespace(gate="features_benefit", retrieval_ratio=1)
    shown = next_command(Fit(Path("q.jsonl"), Path("run")), gate, dev)
    assert says in shown and lacks not in shown
    assert next_command(Fit(Path("q"), Path("run")), gate, dev, "at most 5").endswith("a promise is stored: at most 5")


def test_other_samples_are_refused_before_the_forecast(tmp_path):
    for name in ("questions.jsonl", "candidates.jsonl", "server.yaml", "samples.db"):
        (tmp_path / name).touch()
    (tmp_path / "fit.json").write_text(json.dumps({"agreed": {"samples": 10}, "minutes": 1}))
    with pytest.raises(UserError, match=r"samples\.db: begun with --samples 10; give that, or name another folder"):
        agree(Fit(Path("q.jsonl"), tmp_path, samples=4), tmp_path / "server.yaml", lambda line: None)


def test_another_model_than_the_one_of_the_first_check_is_refused(tmp_path):
    (tmp_path / "server.yaml").write_text("backend: openai\nmodel: a:latest\nserver_url: http://127.0.0.1:1/v1\n")
    fit = Fit(Path("q.jsonl"), tmp_path, server="http://127.0.0.1:1/v1", model="a")
    assert server_config(fit, print) == tmp_path / "server.yaml"
    with pytest.raises(UserError, match=r"server\.yaml: is of model a:latest; name that one, or another folder"):
        server_config(replace(fit, model="b"), print)


def test_the_pilot_s_counts_are_shown_with_intervals():
    never = SettingResult(SearchSetting("", 0), 50, 20, 0, 0, 0, 0, 0)
    best = SettingResult(SearchSetting("candidates", 3), 50, 22, 0, 0, 6, 4, 0)
    lines = dict(line.split("  ", 1) for line in search_lines(never, best))
    assert lines["never searching"].strip() == "40.0 % [27.6, 53.8] right"  # Wilson's interval of 20 of 50
    assert "50 questions, none of test, both answers with a verdict, with 3 passages" in lines["does your search help?"]
    assert lines["answer"].endswith(" A gate can gain at most 8.0 points here.")
    assert "+4.0 points" in lines["difference"] and "would decide it" in lines["difference"]


def test_how_many_questions_show_what():
    halves = [reach(n).half for n in SIZES]
    for n, half in zip(SIZES, halves, strict=True):  # about the normal interval of a difference of 6 points
        assert half == pytest.approx(1.96 * ((0.14 - 0.06**2) / n) ** 0.5, rel=0.12)
    none_lost = Dev(np.arange(75.0), np.ones(75), np.ones(75), np.ones(75))
    assert control(none_lost, reach(75).promise + 1e-6).ratio == 0  # may skip every search
    with pytest.raises(UserError, match="too few"):
        control(none_lost, reach(75).promise - 1e-6)
    assert planning_line(1).startswith("1 test question: too few to say anything; four times as many measure")
    assert "about 400 questions" in needed_questions(Delta(0.05, -0.05, 0.15), 100)
    assert needed_questions(Delta(1e-17, -0.1, 0.1), 100, "none") == "none"


def test_readme_counts_the_answers_of_three_hundred_questions():
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    each = 2 * (Fit.samples + 1)
    n = Fit.pilot * (1 + len(KS)) + 225 * each + 75 * 2 - 2 * Fit.pilot  # those of the pilot with the best search
    assert f"for 300 questions about {n:,} answers. A pilot asks {Fit.pilot} of them with 0, 1, 2, 3 and 5" in readme
    assert f"{each} answers to each of 225 questions and 2 to each of 75," in readme


def test_the_page_shows_the_table_that_is_computed():
    page = (ROOT / "docs/tutorials/your-questions.md").read_text(encoding="utf-8")
    rows = [f"{4 * size.n:>6,}  {size.n:>14,}  {f'±{100 * size.half:.1f} points':<22}  {100 * size.promise:.1f} points"
            for size in map(reach, SIZES)]  # fmt: skip
    head = "in all  test questions  a difference is known to  smallest loss that can be promised"
    assert "\n".join([head, *rows]) in page
