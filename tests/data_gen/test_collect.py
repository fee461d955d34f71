"""collect.py: checked questions in a run folder, once."""

import json
import re
from collections import Counter
from pathlib import Path

from native_files import NATIVE
from support import scripts

from kbtrain.io import jsonl
from kbtrain.io.provenance import file_sha256, meta_path, read_meta
from kbtrain.io.store import SampleStore
from kbtrain.questions.catalogue import DATA_SETS, atlas_file
from kbtrain.records import Evidence, Passage, Question, Sample, SampleSet

ROOT = Path(__file__).parents[2]


def collect(*options):
    return scripts.here("data_gen/collect.py", *options)


def test_the_atlas_comes_whole_with_its_corpus_and_provenance(tmp_path):
    done = collect("--run", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "questions.jsonl").read_bytes() == atlas_file("questions").read_bytes()
    assert (tmp_path / "passages.jsonl").read_bytes() == atlas_file("passages").read_bytes()
    meta = read_meta(tmp_path / "questions.jsonl")
    assert (meta["stage"], meta["n_records"]) == ("collect", sum(meta["splits"].values()))
    files = [atlas_file("questions"), atlas_file("passages")]
    assert meta["inputs"] == {file.name: file_sha256(file) for file in files}
    before = (tmp_path / "questions.jsonl").stat().st_mtime_ns
    assert "there already" in collect("--run", tmp_path).stdout
    assert (tmp_path / "questions.jsonl").stat().st_mtime_ns == before


def test_a_collecting_that_finds_nothing_leaves_an_earlier_ones_files(tmp_path):
    source, run = tmp_path / "mine.jsonl", tmp_path / "run"
    source.write_text('{"question": "a?", "answers": "b"}\n')
    given = ("--run", run, "--dataset", "jsonl", "--path", source)
    assert collect(*given).returncode == 0
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    done = collect(*given, "--test", 0)
    assert done.returncode == 2 and "no questions left to collect" in done.stderr
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def native(tmp_path, name):
    path = tmp_path / NATIVE[name].name
    path.write_text(NATIVE[name].render(NATIVE[name].records), encoding="utf-8")
    return path


def collected(run):
    return list(jsonl.read(Question, run / "questions.jsonl"))


def test_passages_of_the_questions_become_corpus_and_evidence(tmp_path):
    run = tmp_path / "run"
    done = collect("--run", run, "--dataset", "hotpotqa", "--path", native(tmp_path, "hotpotqa"))
    assert done.returncode == 0, done.stderr
    # 9 paragraphs, two of them in all three
    assert "3 questions (train 3, dev 0, test 0) and 5 passages" in done.stdout
    passages = {passage.id: passage for passage in jsonl.read(Passage, run / "passages.jsonl")}
    assert len(passages) == 5
    assert read_meta(run / "passages.jsonl")["stage"] == "collect"
    for retriever, n in (("fixed", 2), ("context", 3)):
        assert scripts.here("data_gen/retrieve.py", "--run", run, "--retriever", retriever).returncode == 0
        found = list(jsonl.read(Evidence, run / "evidence.jsonl"))
        assert [len(one.hits) for one in found] == [n] * 3
        assert all(
            one.gold_found and all(passages[hit.passage_id].text == hit.text for hit in one.hits) for one in found
        )


def test_a_random_draw_is_the_same_for_the_same_seed(tmp_path):
    drawn = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        done = collect("--run", tmp_path / name, "--limit", 40, "--pick", "random", "--seed", seed)
        assert done.returncode == 0, done.stderr
        assert "2480 beyond the limits" in done.stdout
        drawn[name] = [question.id for question in collected(tmp_path / name)]
    assert drawn["a"] == drawn["b"] != drawn["c"] and len(drawn["a"]) == 40
    assert read_meta(tmp_path / "a" / "questions.jsonl")["left_out"] == {"beyond": 2480}


def test_questions_without_a_published_answer_are_left_out_and_counted(tmp_path):
    path = tmp_path / "law_test.csv"
    path.write_text("id,question,A,B,C,D\n0,哪个？,a,b,c,d\n1,谁？,a,b,c,d\n")
    done = collect("--run", tmp_path / "run", "--dataset", "ceval", "--path", path)
    assert done.returncode == 2 and "no questions left to collect; skipped: 2 with hidden answers" in done.stderr
    assert not (tmp_path / "run" / "questions.jsonl").exists()
    done = collect("--run", tmp_path / "run", "--dataset", "ceval", "--path", path, "--hidden", "keep")
    assert done.returncode == 0 and [question.gold for question in collected(tmp_path / "run")] == ["hidden"] * 2


def test_a_table_by_its_config_and_by_the_command_line(tmp_path):
    table = tmp_path / "quiz.csv"
    table.write_text("number,ask,right,A,B\n7,Which is a fruit?,2,stone,pear\n8,Which is red?,1,blood,grass\n")
    config = ROOT / "data_gen" / "configs" / "collect_columns.yaml"
    done = collect("--config", config, "--run", tmp_path / "run", "--path", table)
    assert done.returncode == 0, done.stderr
    assert [(q.id, q.answers, q.options) for q in collected(tmp_path / "run")] == [
        ("7", ("B",), ("stone", "pear")), ("8", ("A",), ("blood", "grass"))
    ]  # fmt: skip
    done = collect("--run", tmp_path / "two", "--path", table, "--dataset", "csv", "--split", "train",
                   "--columns", "{text: ask, answers: right}")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [(q.answers, q.split) for q in collected(tmp_path / "two")] == [(("2",), "train"), (("1",), "train")]
    done = collect("--run", tmp_path / "no", "--path", table, "--dataset", "csv", "--columns", "{text: asks}")
    assert "quiz.csv:2: field 'asks': missing; there is number, ask, right, A, B" in done.stderr


def test_the_list_says_where_from_under_which_licence_and_what_is_kept():
    done = collect("--list")
    assert done.returncode == 0
    names = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert names == list(DATA_SETS) and len(names) >= 23
    for word in ("  from     ", "  licence  ", "  keeps    "):
        assert done.stdout.count(word) == len(names)
    addresses = re.findall(r"^  get      (\S+)$", done.stdout, flags=re.MULTILINE)
    assert len(addresses) >= 10 and all(address.startswith("http") for address in addresses)


def own(path, n=120):
    """Questions of an engineer: four wordings of each, none of our field names."""
    rows = [{"prompt": f"{how} thing number {i * 7919}{'xyz'[i % 3]}?", "gold": f"a{i}", "topic": f"t{i}"}
            for i in range(n // 4) for how in ("What is", "Please tell me about", "Who made", "Where is")]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


MAP = ("--columns", "{text: prompt, answers: gold}")


def test_shares_make_three_splits_by_a_hash_and_a_group_stays_in_one(tmp_path):
    options = ("--dataset", "jsonl", "--path", own(tmp_path / "mine.jsonl"), *MAP, "--shares", ".5,.25,.25")
    done = collect("--run", tmp_path / "a", *options, "--group-by", "topic")
    assert done.returncode == 0, done.stderr
    splits: dict[str, set[str]] = {}
    for question in collected(tmp_path / "a"):
        splits.setdefault(question.answers[0], set()).add(question.split)
    assert all(len(found) == 1 for found in splits.values())
    counts = Counter(question.split for question in collected(tmp_path / "a"))
    assert set(counts) == {"train", "dev", "test"} and counts["train"] > 30
    lines = (tmp_path / "mine.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "mine.jsonl").write_text("".join(reversed(lines)))  # a question keeps its split wherever it stands
    assert collect("--run", tmp_path / "b", *options, "--group-by", "topic").returncode == 0
    by_text = {run: {q.text: q.split for q in collected(tmp_path / run)} for run in ("a", "b")}
    assert by_text["a"] == by_text["b"]
    assert collect("--run", tmp_path / "c", *options).returncode == 0  # without groups wordings fall apart
    assert {q.text: q.split for q in collected(tmp_path / "c")} != by_text["a"]


def test_near_duplicates_across_splits_are_counted(tmp_path):
    rows = [
        *(
            ("train", "How do I reset the password of my account?"),
            ("test", "How do I reset the password of my accounts"),
        ),
        *(("train", "Which capital has Bolivia?"), ("test", "Which capital has Portugal?")),
        *(("dev", "Where is the nearest office in Hamburg?"), ("test", "where is the nearest office in hamburg")),
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({"split": s, "question": t, "answer": "x"}) + "\n" for s, t in rows))
    done = collect("--run", tmp_path / "run", "--dataset", "jsonl", "--path", path)
    assert done.returncode == 0, done.stderr
    for split, twins in {"train": f"{path}:1 and {path}:2", "dev": f"{path}:5 and {path}:6"}.items():
        line = f"{split} questions with a near duplicate in test: 1 ({twins}); this flatters the figures;"
        assert f"warning: {line}" in done.stdout, done.stdout
    assert read_meta(tmp_path / "run" / "questions.jsonl")["near_duplicates"] == 2


def answered(run, facts):
    with SampleStore(run / "samples.db") as store:
        store.begin("main", facts)
        greedy = Sample(-1, "b", 1, "eos", -0.1)
        store.put("main", [SampleSet(question.id, "llm", (), greedy, 5) for question in collected(run)])


def test_questions_with_stored_answers_are_not_replaced_by_others(tmp_path):
    run, path = tmp_path / "run", own(tmp_path / "mine.jsonl")
    options = ("--run", run, "--dataset", "jsonl", *MAP)
    shares = ("--path", path, "--shares", ".5,.25,.25")
    assert collect(*options, *shares).returncode == 0
    before = (run / "questions.jsonl").read_bytes()
    answered(run, {"questions": file_sha256(run / "questions.jsonl")})

    def refused(*given):
        done = collect(*options, *given)
        assert done.returncode == 2 and (run / "questions.jsonl").read_bytes() == before, done.stdout
        assert done.stderr.count("\n") == 1
        return done.stderr

    assert refused("--path", path) == (
        f"error: {run}/questions.jsonl: samples.db holds answers to these questions, which were made with shares = "
        "[0.5, 0.25, 0.25], now it is null; undo this, or name another folder by --run (more questions, too)\n"
    )
    assert 'made with group_by = null, now it is "topic"' in refused(*shares, "--group-by", "topic")
    assert "which were made from other data" in refused("--path", own(tmp_path / "less.jsonl", 80), *shares[2:])
    assert "there already" in collect(*options, *shares).stdout
    assert "made with path = " in refused("--path", path.rename(tmp_path / "other.jsonl"), *shares[2:])  # other ids
    (tmp_path / "other.jsonl").rename(path)
    (run / "questions.jsonl").rename(run / "first.jsonl")
    assert collect(*options, "--path", path).returncode == 0
    assert (run / "questions.jsonl").read_bytes() != before
    assert collect(*options, *shares).returncode == 0  # the answered ones take their place again
    assert (run / "questions.jsonl").read_bytes() == before


def test_a_renamed_file_names_another_set_of_the_same_ids(tmp_path):
    run, path = tmp_path / "run", own(tmp_path / "mine.jsonl")
    options = ("--run", run, "--dataset", "jsonl", "--columns", "{id: prompt, text: prompt, answers: gold}")
    assert collect(*options, "--path", path).returncode == 0
    answered(run, {"questions": file_sha256(run / "questions.jsonl")})
    assert "made with path = " in collect(*options, "--path", path.rename(tmp_path / "other.jsonl")).stderr


def test_imported_answers_keep_their_questions_and_a_store_without_answers_binds_nothing(tmp_path):
    run, path = tmp_path / "run", own(tmp_path / "mine.jsonl")
    options = ("--run", run, "--dataset", "jsonl", "--path", path, *MAP)
    run.mkdir()
    with SampleStore(run / "samples.db") as store:
        store.begin("main", {"model": "none such"})
    (run / "samples2.db").touch()  # of a sampling whose disk was full before a first page was written
    for more in ((), ("--limit", 8)):
        assert (done := collect(*options, *more)).returncode == 0, done.stderr
    answered(run, {"source": "x"})  # as import_answers.py notes it
    meta = meta_path(run / "questions.jsonl")
    meta.write_text(meta.read_text().replace('"stage": "collect"', '"stage": "import_answers"'))
    done = collect(*options, "--limit", 9)
    assert done.returncode == 2 and "which were not made by collect" in done.stderr, done.stderr
