"""The pilot: k by the dev questions, before anything is trained."""

import json
import sqlite3
from dataclasses import replace

import pytest
from support.scripts import load, run

from kbtrain.evaluation.search_pilot import NEVER, PLAIN, SearchSetting, advice, best_setting, compare_settings
from kbtrain.evaluation.search_pilot import pick_questions as picked
from kbtrain.io import jsonl
from kbtrain.io.provenance import meta_of, write_meta
from kbtrain.io.store import SampleStore
from kbtrain.llm.base import ScriptedLLM
from kbtrain.records import Evidence, Hit, Question

SCRIPTED = ("--model", "scripted", "--backend", "scripted")
SETTINGS = [SearchSetting("bm25", 1), SearchSetting("bm25", 3)]


def verdicts(never, one, three):
    """Verdicts of questions a, b, ...: 1, 0 or ? (none)."""
    rows = {NEVER: never, "bm25 1": one, "bm25 3": three}
    return {
        name: {chr(97 + i): {"1": True, "0": False}.get(c) for i, c in enumerate(row)} for name, row in rows.items()
    }


def tokens(n):
    sizes = {NEVER: 10, "bm25 1": 20, "bm25 3": 40}
    return {name: {chr(97 + i): size for i in range(n)} for name, size in sizes.items()}


def test_repaired_and_broken_answers_are_counted_on_questions_with_every_verdict():
    nevers, (one, three) = compare_settings(SETTINGS, verdicts("1100?", "10110", "0101?"), tokens(5))
    assert (nevers[PLAIN].n, nevers[PLAIN].right) == (4, 2)
    assert (one.right, one.repaired, one.broken, one.prompt_tokens) == (3, 2, 1, 20.0)
    assert (three.right, three.repaired, three.broken) == (2, 1, 1) and one.low < 0.75 < one.high


def test_the_best_setting_has_most_right_answers_and_of_equals_the_shortest_prompt():
    for three, k in (("0111", 3), ("0011", 1)):
        _, results = compare_settings(SETTINGS, verdicts("0000", "1100", three), tokens(4))
        assert best_setting(results).setting.k == k


@pytest.mark.parametrize(
    ("never", "one", "text"), [ ("0" * 90, "1" * 80 + "0" * 10, "A search helps"),
    ("1" * 80 + "0" * 10, "0" * 90, "A search harms"), ("1" * 90, "1" * 89 + "0", "A search changes few answers"),
    ("0" * 6, "1" + "0" * 5, "A search helps: it repairs 1 and breaks 0 of 6 answers."),
    ("1" * 50, "1" * 44 + "0" * 6, "A search harms: it repairs 0 and breaks 6 of 50 answers."), ( "1" * 30 + "0" * 20,
    "0" * 9 + "1" * 25 + "0" * 16, "A search repairs some answers and breaks others: it "
    "repairs 4 and breaks 9 of 50 answers. A gate can gain at most 8.0 points here.", ),
    ("1" * 45 + "0" * 45, "0" * 20 + "1" * 60 + "0" * 10, "A search repairs some answers and breaks others"), ],
)  # fmt: skip
def test_the_advice_follows_the_counts(never, one, text):
    nevers, results = compare_settings(SETTINGS[:1], verdicts(never, one, one), tokens(90))
    assert advice(nevers[PLAIN], results[0]).startswith(text)


@pytest.fixture
def folder(tmp_path):
    """A run folder with five hits a question; the scripted model answers with what the prompt's first passage holds."""
    questions = [
        Question(f"q{i}", f"Which city is {i}?", (f"city{i}",), "dev" if i < 8 else "train", "t") for i in range(12)
    ]
    hits = tuple(Hit(f"p{n}", "", f"passage {n}", 1.0) for n in range(1, 6))
    jsonl.write(tmp_path / "questions.jsonl", questions)
    write_meta(tmp_path / "questions.jsonl", stage="collect", config={}, inputs=[])
    rows = [Evidence(q.id, "bm25", q.text, hits, None, ()) for q in questions]
    jsonl.write(tmp_path / "candidates.jsonl", rows)
    write_meta(
        tmp_path / "candidates.jsonl", stage="retrieve", config={"retriever": "bm25", "k": 5, "pilot": True},
        inputs=[tmp_path / "questions.jsonl"],
    )  # fmt: skip
    return tmp_path


def test_the_chosen_number_of_passages_is_the_evidence_of_all_questions(folder):
    first = run("data_gen/pilot.py", "--run", folder, *SCRIPTED, "--ks", "[1, 3]", "--questions", 6)
    assert "6 questions, without a search and with 2 searches: 18 greedy answers" in first.stdout
    report = json.loads((folder / "pilot.json").read_text())
    evidence = list(jsonl.read(Evidence, folder / "evidence.jsonl"))
    assert report["never"]["n"] == 6 and len(report["settings"]) == 2
    assert {len(row.hits) for row in evidence} == {report["chosen"]["k"]} and len(evidence) == 12
    assert meta_of(folder / "evidence.jsonl")["config"]["k"] == report["chosen"]["k"]
    before = (folder / "evidence.jsonl").read_bytes()
    again = run("data_gen/pilot.py", "--run", folder, *SCRIPTED, "--ks", "[1, 3]", "--questions", 6)
    assert again.stdout.splitlines()[1:] == first.stdout.splitlines()[1:]
    assert (folder / "evidence.jsonl").read_bytes() == before


def test_the_questions_of_a_sorted_file_are_evenly_spaced():
    rows = [Question(f"q{i}", "?", ("a",) if i != 3 else (), "dev" if i < 9 else "train", "t") for i in range(13)]
    assert [q.id for q in picked(rows, ("train", "dev"), 3)] == ["q0", "q2", "q6", "q9", "q10", "q11"]
    assert len(picked(rows, ("dev",), None)) == 8


def test_a_given_number_is_used_and_the_table_is_beside_it(folder):
    for k in (2, 5):
        run("data_gen/pilot.py", "--run", folder, *SCRIPTED, "--ks", "[1, 3]", "--k", k)
        report = json.loads((folder / "pilot.json").read_text())
        assert report["given"] and report["chosen"]["k"] == k and len(report["settings"]) == 2
        assert {len(row.hits) for row in jsonl.read(Evidence, folder / "evidence.jsonl")} == {k}


def test_too_few_hits_are_refused_with_the_command(folder):
    result = run("data_gen/pilot.py", "--run", folder, *SCRIPTED, "--ks", "[9]")
    assert result.returncode == 2 and "'ks' and 'k' ask for 9; run retrieve with --k 9" in result.stderr
    rows = list(jsonl.read(Evidence, folder / "candidates.jsonl"))
    jsonl.write(folder / "others.jsonl", [*rows[:9], *rows[10:], rows[9]])  # of questions that the pilot does not ask
    result = run(
        "data_gen/pilot.py", "--run", folder, *SCRIPTED, "--candidates", json.dumps([f"{folder}/others.jsonl"])
    )
    assert result.returncode == 2 and "others.jsonl:10" in result.stderr and not (folder / "evidence.jsonl").exists()
    asked = [replace(row, text=f"{row.text} Now?") for row in jsonl.read(Question, folder / "questions.jsonl")]
    jsonl.write(folder / "questions.jsonl", asked)  # other questions of the same ids
    write_meta(folder / "questions.jsonl", stage="collect", config={}, inputs=[])
    result = run("data_gen/pilot.py", "--run", folder, *SCRIPTED, "--ks", "[1]")
    assert result.returncode == 2 and "candidates.jsonl: made from another questions.jsonl" in result.stderr


def test_two_searches_are_compared_by_their_files(folder):
    other = folder / "other"
    other.mkdir()
    rows = [replace(row, hits=row.hits[::-1]) for row in jsonl.read(Evidence, folder / "candidates.jsonl")]
    jsonl.write(other / "candidates.jsonl", rows)
    write_meta(other / "candidates.jsonl", stage="retrieve", config={"retriever": "vectors", "k": 5}, inputs=[])
    files = json.dumps([str(folder / "candidates.jsonl"), str(other / "candidates.jsonl")])
    run("data_gen/pilot.py", "--run", folder, *SCRIPTED, "--ks", "[1, 2]", "--candidates", files)
    report = json.loads((folder / "pilot.json").read_text())
    names = [(setting["setting"]["candidates"], setting["setting"]["k"]) for setting in report["settings"]]
    assert [k for _, k in names] == [1, 2, 1, 2] and len({name for name, _ in names}) == 2
    assert "other-candidates" in {name for name, _ in names}


def test_a_prompt_is_compared_with_its_own_answers_without_a_search():
    free = SearchSetting("bm25", 1, "free")
    of_free = {free.without: {"a": True, "b": True}, free.name: {"a": True, "b": False}}
    both = {NEVER: {"a": False, "b": False}, "bm25 1": {"a": True, "b": True}, **of_free}
    nevers, (one, other) = compare_settings([SETTINGS[0], free], both, {name: dict.fromkeys("ab", 1) for name in both})
    assert (nevers[PLAIN].right, nevers["free"].right) == (0, 2)
    assert (one.repaired, one.broken, other.repaired, other.broken) == (2, 0, 0, 1)


def test_the_best_prompt_is_that_of_sampling(folder, monkeypatch):
    files = {part: folder / f"{part}.txt" for part in ("llm", "rag")}
    files["llm"].write_text("{question} alone")
    files["rag"].write_text("{evidence} {question}")
    monkeypatch.setattr(
        ScriptedLLM, "_hashed", lambda _, request, index: request.question.answers[0] if request.prompts else "unknown"
    )
    pilot = load("data_gen/pilot.py")
    asked = {"run": folder, "model": "scripted", "backend": "scripted"}
    pilot.main(pilot.PilotConfig(**asked, ks=(1,), forms={"mine": files}))
    report = json.loads((folder / "pilot.json").read_text())
    assert [(row["setting"]["form"], row["right"]) for row in report["settings"]] == [("", 0), ("mine", 8)]
    assert report["chosen"]["form"] == "mine" and report["never"]["right"] == 8
    run("data_gen/sample.py", "--run", folder, *SCRIPTED, "--samples", "{train: 0, dev: 0, test: 0}")
    assert meta_of(folder / "samples.db")["config"]["prompts"] == {part: str(path) for part, path in files.items()}
    with SampleStore(folder / "samples.db", read_only=True) as store:
        assert store.run_meta("main")["own_prompts"]["llm"] == "{question} alone"


def test_sampling_does_not_ask_for_the_pilots_greedy_answers_again(folder, monkeypatch):
    pilot, sample = load("data_gen/pilot.py"), load("data_gen/sample.py")
    asked, reply = [], ScriptedLLM._sample

    def counted(self, request, index):
        asked.append((request.question.id, request.condition, index))
        return reply(self, request, index)

    monkeypatch.setattr(ScriptedLLM, "_sample", counted)
    keys = {"run": folder, "model": "scripted", "backend": "scripted"}
    pilot.main(pilot.PilotConfig(**keys, ks=(1, 3), questions=6, k=2))
    asked.clear()
    sample.main(sample.SampleConfig(**keys, sampling_run="given", samples={"train": 0, "dev": 0, "test": 0}))
    assert [sum(row[1] == condition for row in asked) for condition in ("llm", "rag")] == [6, 12]
    [file.unlink() for file in folder.glob("samples.db*")]
    pilot.main(pilot.PilotConfig(**keys, ks=(1, 3), questions=6))
    piloted, stored = {question.id for question in jsonl.read(Question, folder / "pilot/questions.jsonl")}, {}
    for name, dev in (("none drawn", 0), ("drawn", 2), ("asked again", 2), ("other", 2)):
        if name == "asked again":
            (folder / "pilot.json").rename(folder / "gone.json")
        elif name == "other":  # other settings than the pilot's
            (folder / "gone.json").rename(folder / "pilot.json")
            keys["max_new_tokens"] = 9
        asked.clear()
        sample.main(sample.SampleConfig(**keys, sampling_run=name, samples={"train": 1, "dev": dev, "test": 0}))
        with SampleStore(folder / "samples.db", read_only=True) as store:
            stored[name] = list(store.iterate(name))
        greedy = {question for question, _, index in asked if index < 0}
        assert greedy.isdisjoint(piloted) == name.endswith("drawn") and len(asked) == len(set(asked))
    assert stored["drawn"] == stored["asked again"] and [len(rows) for rows in stored.values()] == [24] * 4
    before = (folder / "pilot/questions.jsonl").read_bytes()
    pilot.main(pilot.PilotConfig(**keys, ks=(1, 3), questions=4, dry_run=True))
    assert (folder / "pilot/questions.jsonl").read_bytes() == before
    del keys["max_new_tokens"]
    for file in (*(folder / "pilot").glob("*.jsonl"), folder / "evidence.jsonl"):  # as of another corpus
        file.write_text(file.read_text().replace("passage ", "other "))
    write_meta(folder / "evidence.jsonl", stage="retrieve", config={}, inputs=[folder / "questions.jsonl"])
    asked.clear()
    sample.main(sample.SampleConfig(**keys, sampling_run="passages", samples={"train": 0, "dev": 0, "test": 0}))
    assert {condition for question, condition, _ in asked if question in piloted} == {"rag"}
    asked.clear()  # the pilot's prompts were another product's
    with sqlite3.connect(folder / "pilot/samples.db") as store:
        store.execute("UPDATE runs SET meta = json_set(meta, '$.own_prompts', json('{}'))")
    sample.main(sample.SampleConfig(**keys, sampling_run="prompts", samples={"train": 0, "dev": 0, "test": 0}))
    assert {condition for question, condition, _ in asked if question in piloted} == {"llm", "rag"}
