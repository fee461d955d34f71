"""data_gen/import_answers.py: answers made elsewhere become a run folder on which the other stages work."""

import json
from pathlib import Path

import pytest
from support.scripts import here

from kbtrain.config import build as build_config
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.provenance import file_sha256, read_meta, write_meta
from kbtrain.io.store import SampleStore
from kbtrain.labeling.imported import ImportCounts
from kbtrain.questions.answered import AnswerColumns, read_answered
from kbtrain.questions.base import Columns
from kbtrain.records import GateScore, Question, Sample, SampleSet

ROOT = Path(__file__).parent.parent.parent
CONFIG = ROOT / "data_gen/configs/import_llama3.yaml"


def native(i):
    """Without retrieval right where i is even, with it where i is a multiple of 3; the file says so but for i = 2."""
    plain, found = (f"Ann {i}" if i % 2 == 0 else "Bob"), (f"It is Ann {i}." if i % 3 == 0 else "Bob")
    made = {"dataset": "nq" if i < 30 else "hotpotqa", "split": "test" if i % 5 == 0 else "train(dev_500)",
            "qid": f"q{i}", "question": f"Who wrote book {i}?", "answers": [f"Ann {i}"],
            "pred_no_retrieval": plain, "acc_no_retrieval": int(i % 2 == 0 and i != 2),
            "pred_one_retrieval": found, "acc_one_retrieval": int(i % 3 == 0)}  # fmt: skip
    if made["split"] == "test":
        made |= (
            {"seakr_direct": {"eigen_score": -i / 10, "perplexity": 1.5, "ln_entropy": 2, "energy_score": 20}}
            if i < 30
            else {"seakr_last_step_eigen_score": i / 10}
        )
    return made


@pytest.fixture
def answers(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(native(i)) + "\n" for i in range(60)))
    return path


@pytest.fixture
def imports(stage):
    module = stage("import_answers")

    def run(path, **settings):
        given = {"path": path, "run": path.parent / "run", **settings}
        module.main(build_config(module.ImportConfig, CONFIG, given))
        return path.parent / "run"

    return run


def test_an_import_is_labelled_and_built_like_sampled_answers(answers, imports, label, build, capsys):
    run = imports(answers)
    out = capsys.readouterr().out
    assert "llm: 30 of 60 greedy answers right (50.0%); the file's own verdict agrees in 59 of 60" in out
    assert "right by this grading alone 1, by theirs alone 0" in out
    assert "scores: seakr_direct 6, direct_perplexity 6, " in out
    questions = {q.id: q for q in jsonl.read(Question, run / "questions.jsonl")}
    assert {q.split for q in questions.values()} == {"train", "dev", "test"}
    assert all((q.split == "test") == (int(i[1:]) % 5 == 0) for i, q in questions.items())
    assert (questions["q1"].dataset, questions["q40"].relation) == ("nq", "hotpotqa")
    labels = label(run, by="greedy", tau_mastery=0.8)
    assert [made.known for made in labels] == [i % 2 == 0 for i in range(60)]
    assert [made.benefit for made in labels] == [(i % 3 == 0) - (i % 2 == 0) for i in range(60)]
    assert {(made.certain, made.llm.certainty, made.effect_certainty) for made in labels} == {(None, None, None)}
    rule = read_meta(run / "labels.jsonl")["label_rule"]
    assert rule["by"] == "greedy" and read_meta(run / "labels.jsonl")["sampling"]["not_known"]
    made = {e.id: e for part in build(run, keys=("mastery", "benefit")).values() for e in part}
    assert len(made) == 60
    assert [made[f"q{i}"].benefit for i in range(60)] == [i % 3 == 0 and i % 2 == 1 for i in range(60)]
    assert {e.certainty for e in made.values()} == {e.soft_certainty for e in made.values()} == {None}


def test_thoughts_are_taken_off_imported_answers_and_counted(answers, imports, label, capsys):
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    for i, row in enumerate(rows):
        plain = row["pred_no_retrieval"]
        row["pred_no_retrieval"] = "<think>\nAnn 1? Bob?" + ("" if i < 4 else f"</think>\n\n{plain}")
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows))
    labels = label(imports(answers), by="greedy", tau_mastery=0.8)
    assert "reasoning stripped from 60 answers; 4 are reasoning alone: skipped" in capsys.readouterr().out
    assert [made.known for made in labels] == [i % 2 == 0 for i in range(4, 60)]


def test_imported_scores_stand_in_a_file_of_their_own(answers, imports):
    run = imports(answers)
    scores = {(s.gate, s.question_id): s.score for s in jsonl.read(GateScore, run / "imported_scores.jsonl")}
    assert len(scores) == 30 and scores["direct_energy", "q25"] == -20
    assert (scores["seakr_direct", "q25"], scores["seakr_last_step", "q30"]) == (-2.5, 3.0)
    meta = read_meta(run / "questions.jsonl")
    assert set(meta["scores"].values()) == {6} and meta["stage"] == "import_answers"
    assert meta["graded"]["llm"]["first"] == ["q2"]


def test_an_interrupted_import_goes_on_and_a_finished_one_is_left_alone(answers, imports, capsys, monkeypatch):
    monkeypatch.setattr("kbtrain.labeling.imported.BATCH", 20)
    count = ImportCounts._count

    def stop(self, row):
        if row.question.id == "q33":
            raise KeyboardInterrupt
        count(self, row)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ImportCounts, "_count", stop)
        imports(answers)
    run = answers.parent / "run"
    assert not (run / "questions.jsonl").exists()
    with SampleStore(run / "samples.db", read_only=True) as store:
        assert store.counts("main") == {"llm": 30, "rag": 30}
    imports(answers)
    with SampleStore(run / "samples.db", read_only=True) as store:
        assert store.counts("main") == {"llm": 60, "rag": 60}
    before = file_sha256(run / "questions.jsonl")
    capsys.readouterr()
    imports(answers)
    assert "there already" in capsys.readouterr().out and file_sha256(run / "questions.jsonl") == before
    scores = (run / "imported_scores.jsonl").read_bytes()
    (run / "imported_scores.jsonl").write_bytes(scores[: len(scores) // 2])
    imports(answers)
    assert (run / "imported_scores.jsonl").read_bytes() == scores
    store = (run / "samples.db").read_bytes()
    (run / "samples.db").write_bytes(store[: len(store) // 2])
    with pytest.raises(UserError, match=r"samples\.db: was changed since import_answers made it"):
        imports(answers)


def test_questions_that_other_answers_belong_to_are_not_replaced(answers, imports):
    run = answers.parent / "run"
    jsonl.write(run / "questions.jsonl", [Question("mine", "Who?", ("Ann",), "test", "own")])
    write_meta(run / "questions.jsonl", stage="collect", config={}, inputs=[])
    before = (run / "questions.jsonl").read_bytes()
    with SampleStore(run / "samples.db") as store:
        store.begin("main", {"questions": file_sha256(run / "questions.jsonl")})
        store.put("main", [SampleSet("mine", "llm", (), Sample(-1, "Ann", 1, "eos", -0.1), 5)])
    told = r"samples\.db holds answers to these questions, which were not made by import_answers; .* another folder"
    with pytest.raises(UserError, match=told):
        imports(answers, sampling_run="imported")
    assert (run / "questions.jsonl").read_bytes() == before
    (run / "samples.db").unlink()
    imports(answers, sampling_run="imported")  # nobody answered them
    assert (run / "questions.jsonl").read_bytes() != before
    other = answers.with_name("other.jsonl")
    other.write_text(answers.read_text().replace("?", " now?"))
    with pytest.raises(UserError, match=r"samples\.db: its answers are of another file than .*other\.jsonl"):
        imports(other, sampling_run="second")


def test_the_named_line_is_mended_the_import_goes_on_and_other_answers_do_not_mix_with_these(answers, imports):
    lines = answers.read_text().splitlines()
    answers.write_text("\n".join([*lines[:-1], lines[-1][:-9]]) + "\n")
    with pytest.raises(UserError, match=r"answers\.jsonl:60: broken JSON"):
        imports(answers)
    answers.write_text("\n".join(lines) + "\n")
    imports(answers)
    with SampleStore(answers.parent / "run" / "samples.db", read_only=True) as store:
        assert store.counts("main") == {"llm": 60, "rag": 60}
    with pytest.raises(UserError, match=r"run 'main' was begun with answers\.llm = "):
        imports(answers, answers={"llm": "pred_one_retrieval", "rag": "pred_one_retrieval"})


def test_a_renamed_file_whose_ids_are_made_of_its_name_gives_no_other_questions(tmp_path):
    rows = [{"question": f"Which is {i}?", "llm": f"a{i}", "rag": f"b{i}", "answers": f"b{i}"} for i in range(30)]
    rows[0]["rag"], rows[2]["id"] = None, "own"  # one is skipped, one has an id
    assert imported(tmp_path, rows).returncode == 0
    (tmp_path / "logs.jsonl").rename(tmp_path / "old.jsonl")
    for name in ("main", "another"):
        done = here("data_gen/import_answers.py", "--run", tmp_path / "run", "--path", tmp_path / "old.jsonl",
                    "--model", "m", "--shares", ".5,.25,.25", "--sampling-run", name)  # fmt: skip
        assert done.returncode == 2 and "old.jsonl under another name, which its ids are made of" in done.stderr
    rows[1]["answers"] = "b"
    assert "of another file than" in imported(tmp_path, rows).stderr
    rows[1]["answers"] = "b1"
    assert imported(tmp_path, rows, "--scores", "{g: llm}").stderr.count("expected a number") == 1
    assert imported(tmp_path, rows, "--placeholders", "[nil]").returncode == 0


def thumbs(n, copies):
    """Rows whose gold is what ``rag`` showed for the first ``copies`` and another wording for the rest."""
    return [
        {"question": f"How do I file claim {i}?", "llm": f"You ask at desk {i}.",
         "rag": (said := f"Send form {i} to us."), "answers": said if i < copies else f"form {i}"}
        for i in range(n)
    ]  # fmt: skip


def imported(folder, rows, *given):
    (folder / "logs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return here("data_gen/import_answers.py", "--run", folder / "run", "--path", folder / "logs.jsonl", "--model", "m",
                "--shares", ".5,.25,.25", *given)  # fmt: skip


def test_gold_that_repeats_what_an_arm_showed_is_refused_with_its_reason(tmp_path):
    """A thumb up judges the answer that was shown; as gold it makes that arm right by construction."""
    done = imported(tmp_path, thumbs(40, 37))
    assert done.returncode == 2 and not (tmp_path / "run" / "questions.jsonl").exists()
    assert "37 of 40 reference answers are word for word the model's own (rag 37)" in done.stderr
    assert "--copied-gold allow" in done.stderr and len(done.stderr.strip().splitlines()) == 1
    done = imported(tmp_path, thumbs(40, 37), "--copied-gold", "allow")
    assert done.returncode == 0 and "warning: 37 of 40 reference answers are word for word" in done.stdout


def test_a_name_that_is_right_is_no_copy(tmp_path):
    names = [{"question": f"Where is town {i}?", "llm": "no", "rag": f"{i}", "answers": f"{i}"} for i in range(40)]
    done = imported(tmp_path, names)
    assert done.returncode == 0 and "word for word" not in done.stdout + done.stderr


def test_an_error_in_place_of_many_answers_is_told_and_short_or_honest_answers_are_not(tmp_path):
    usual = ["It is yes, certainly.", "no", "I don't know.", "It is not mentioned in the documents.", "town 40"]
    rows = [{"question": f"Where is town {i}?", "answers": f"town {i}" if i else "yes",
             "llm": usual[i % 5] if i != 1 else None,
             "rag": f"town {i}" if i % 3 else "Error: 4\n29" * 9} for i in range(41)]  # fmt: skip
    done = imported(tmp_path, rows)
    assert (
        "warning: rows skipped that lack one of both answers (null, no field, an empty cell): 1 (first" in done.stdout
    )
    cut = "'Error: 4\\n29Error: 4\\n29Error: 4\\n29Error: 4\\n29Error: 4\\n29Error: 4\\n29Error\u2026'"
    assert f"warning: the answer {cut} to 14 of 40 questions under 'rag' is right for none; is it" in done.stdout
    assert done.stdout.count("is right for none") == 1


def test_labels_warn_of_gold_that_repeats_an_arm(tmp_path, script):
    run = tmp_path / "run"
    rows = [row | ({"llm": row["answers"]} if i % 2 else {}) for i, row in enumerate(thumbs(40, 40))]
    imported(tmp_path, rows, "--copied-gold", "allow")
    done = script("label", "--run", str(run), "--by", "greedy", "--tau-mastery", ".5")
    assert "warning: 40 of 40 reference answers are word for word the model's own (rag 40, llm 20)" in done.stdout


def of_arms(folder, name, rows):
    path, columns = folder / name, AnswerColumns(Columns({"answers": "gold"}), {"llm": "plain", "rag": "found.text"})
    rows = [{"question": f"{i}?", "gold": "x", "found": {"text": "x"}, **row} for i, row in enumerate(rows)]
    if name.endswith(".csv"):
        cells = [[row.get("plain") or "", json.dumps(row["found"])] for row in rows]
        lines = ["question,gold,plain,found", *(f'{i}?,x,{plain},"{found.replace(chr(34), 2 * chr(34))}"'
                                                for i, (plain, found) in enumerate(cells))]  # fmt: skip
    else:
        lines = [json.dumps({key: value for key, value in row.items() if value is not ...}) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path, list(read_answered(path, columns))


@pytest.mark.parametrize(("name", "absent"), [("logs.jsonl", None), ("logs.csv", ""), ("logs.csv", "\u200b")])
def test_a_row_without_both_answers_is_skipped_and_in_most_rows_refused(tmp_path, name, absent):
    half = [{"plain": "x" if i % 2 else absent} for i in range(8)]
    _, found = of_arms(tmp_path, name, half)
    assert [row.has_both for row in found] == [False, True] * 4
    counts = ImportCounts()
    with SampleStore(tmp_path / "samples.db") as store:
        store.begin("main", {})
        assert len(list(counts.into(store, "main", iter(found)))) == 4
    assert "lack one of both answers (null, no field, an empty cell): 4 (first at" in "\n".join(counts.lines())
    assert counts.graded["llm"].n == counts.graded["rag"].n == 4
    for more in ({"plain": absent}, {"plain": absent, "found": {"text": absent}}, {"plain": "x", "found": {}}):
        with pytest.raises(UserError, match=f"{name}: 5 of 9 rows lack an answer; answer each"):
            of_arms(tmp_path, name, [*half, more])
    _, found = of_arms(tmp_path, name, [*half, {"plain": absent, "gold": ""}] if name.endswith("l") else half)
    assert len(found) == 8 + name.endswith("l")  # rows without a reference answer do not count


def test_a_text_where_an_object_is_expected_is_an_error_with_its_place(tmp_path):
    with pytest.raises(UserError, match=r"logs\.jsonl:2: field 'found\.text': missing"):
        of_arms(tmp_path, "logs.jsonl", [{"plain": "x"}, {"plain": "x", "found": "Internal Server Error"}])
    _, found = of_arms(
        tmp_path,
        "logs.jsonl",
        [{"plain": "x"}] * 3 + [{"plain": "x", "found": {"error": 500}}, {"plain": "x", "found": ...}],
    )
    assert [row.has_both for row in found] == [True] * 3 + [False] * 2
