"""Shards divide a run without rest; merged they are the undivided run; what does not belong together is refused."""

import dataclasses
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scripts import load

from kbtrain.config import parse_args
from kbtrain.distributed.merge import OF_A_SHARD
from kbtrain.errors import UserError
from kbtrain.io.provenance import meta_path, read_meta, sampling_of_labels
from kbtrain.io.store import SampleStore
from kbtrain.llm.sample_stage import Shard


@pytest.fixture
def sharded(make_run, sample):
    folder = make_run("sharded")
    for i in (1, 2, 3):
        sample(folder, "--shard", f"{i}/3")
    return folder


def shard(folder, i, n=3):
    return folder / f"samples.shard-{i}-of-{n}.db"


def test_merged_shards_are_the_undivided_run(make_run, sample, merge, rows, sharded, capsys):
    whole = make_run("whole")
    sample(whole)
    merge(sharded)
    assert "75 prompts of 3 shards, 0 gaps" in capsys.readouterr().out
    assert rows(sharded / "samples.db") == rows(whole / "samples.db")
    assert len(rows(sharded / "samples.db")) == 75
    with SampleStore(sharded / "samples.db") as merged, SampleStore(whole / "samples.db") as undivided:
        assert merged.run_meta("main") == undivided.run_meta("main")
    meta = read_meta(sharded / "samples.db")
    assert meta["stage"] == "merge" and meta["questions"] == read_meta(whole / "samples.db")["questions"]
    assert len(meta["inputs"]) == 3 and meta["n_gaps"] == 0
    assert sampling_of_labels(sharded) == {**sampling_of_labels(whole), "run": str(sharded), "shard": "1/3"}
    assert not list(sharded.glob("samples.db.partial*"))
    sample(sharded)  # the stage takes it for its own finished run
    assert "all 75 prompts are in" in capsys.readouterr().out


def test_a_missing_shard_is_refused_unless_gaps_are_allowed(sharded, merge, rows):
    shard(sharded, 2).unlink()
    with pytest.raises(UserError, match=r"/.*: shard 2 of 3 is missing \(1 such in all\).*--allow-gaps"):
        merge(sharded)
    assert not (sharded / "samples.db").exists()
    merge(sharded, "--allow-gaps")
    assert len(rows(sharded / "samples.db")) == 75 - 26  # windows 1, 4, 7 of seven asks, and the last of five
    assert read_meta(sharded / "samples.db")["n_gaps"] == 1


def test_an_unfinished_shard_is_refused_and_the_rest_can_be_sampled_later(sharded, make_run, sample, merge, rows):
    with SampleStore(shard(sharded, 3)) as store:
        store._db.execute("DELETE FROM samples WHERE question = 1")
        store._db.execute("DELETE FROM sets WHERE question = 1")
    assert not meta_path(shard(sharded, 3)).exists()  # as of a stage that has not ended
    with pytest.raises(UserError, match=r"shard-3-of-3.db: holds \d+ of its 21 prompts"):
        merge(sharded)
    merge(sharded, "--allow-gaps")
    sample(sharded)  # fills the gap
    whole = make_run("whole")
    sample(whole)
    assert rows(sharded / "samples.db") == rows(whole / "samples.db")


def copied(folder, sample):
    shutil.copy(shard(folder, 1), shard(folder, 9))


def overlapping(folder, sample):
    with SampleStore(shard(folder, 1), read_only=True) as store:
        stolen = next(iter(store.iterate("main")))
    with SampleStore(shard(folder, 2)) as store:
        store.put("main", [stolen])


def third(*more):
    def change(folder, sample):
        shard(folder, 3).unlink()
        sample(folder, *more)

    return change


def whole(folder, sample):
    sample(folder)
    (folder / "samples.db").rename(shard(folder, 9))


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (copied, (), "shard 1 is also in .*; remove one of them"),
        (overlapping, (), "shard-2-of-3.db: overlaps another shard .*'q"),
        (third("--shard", "2/2"), (), "one of .* shards, .* one of"),
        (third("--shard", "3/3", "--seed", "7"), (), "was sampled with sampling = "),
        (third("--shard", "3/3", "--conditions", "[llm]", "--window", "5"), (), "was sampled with window = 5"),
        (whole, (), "run 'main' in it is not a shard"),
        (lambda folder, sample: None, ("--sampling-run", "second"), "no run 'second'; runs in it: main"),
        (lambda folder, sample: None, ("--run", "/nowhere"), "/nowhere: no such file or folder"),
    ],
)
def test_stores_that_do_not_belong_together_are_one_line(change, arguments, message, sharded, sample, merge):
    change(sharded, sample)
    with pytest.raises(UserError, match=message) as caught:
        merge(sharded, *arguments)
    assert "\n" not in str(caught.value) and not (sharded / "samples.db").exists()


def test_a_second_run_and_a_missing_shard_are_added_to_the_store_that_is_there(
    make_run, sample, merge, rows, sharded, capsys
):
    shard(sharded, 3).rename(sharded / "third.db")
    merge(sharded, "--allow-gaps")
    (sharded / "third.db").rename(shard(sharded, 3))
    capsys.readouterr()
    merge(sharded)
    assert "75 prompts of 3 shards, 0 gaps, 21 of them now" in capsys.readouterr().out
    whole = make_run("whole")
    sample(whole)
    assert rows(sharded / "samples.db") == rows(whole / "samples.db")
    before = meta_path(sharded / "samples.db").read_bytes()
    merge(sharded)
    assert "all 75 prompts of 3 shards are in" in capsys.readouterr().out
    assert meta_path(sharded / "samples.db").read_bytes() == before
    for i in (1, 2, 3):
        shard(sharded, i).unlink()
        sample(sharded, "--shard", f"{i}/3", "--sampling-run", "warm", "--seed", "7")
    merge(sharded, "--sampling-run", "warm")
    with SampleStore(sharded / "samples.db", read_only=True) as store:
        assert store.runs() == ["main", "warm"]
        assert sum(store.counts("main").values()) == sum(store.counts("warm").values()) == 75
    assert rows(sharded / "samples.db") == rows(whole / "samples.db")
    assert read_meta(sharded / "samples.db")["run_meta"]["sampling"]["seed"] == "7"


def test_adding_goes_on_where_it_was_killed(sharded, merge, rows, make_run, sample):
    """Between two transactions, or before the metadata."""
    with SampleStore(shard(sharded, 1), read_only=True) as part, SampleStore(sharded / "samples.db") as other:
        found = list(part.iterate("main"))
        plain = {key: value for key, value in part.run_meta("main").items() if key not in OF_A_SHARD}
        other.begin("main", plain)
        other.put("main", found[:-1])
    merge(sharded)
    meta_path(sharded / "samples.db").unlink()
    merge(sharded)
    whole = make_run("whole")
    sample(whole)
    assert rows(sharded / "samples.db") == rows(whole / "samples.db")
    assert read_meta(sharded / "samples.db")["stage"] == "merge"


@pytest.mark.parametrize("wrong", ["answers", "settings", "overlap"])
def test_what_does_not_belong_into_the_store_that_is_there_leaves_it_as_it_is(sharded, sample, merge, wrong):
    with SampleStore(shard(sharded, 1), read_only=True) as part:
        one = next(iter(part.iterate("main")))
        meta = {key: value for key, value in part.run_meta("main").items() if key not in OF_A_SHARD}
    with SampleStore(sharded / "samples.db") as store:
        store.begin("other" if wrong == "overlap" else "main", meta | ({"n": 3} if wrong == "settings" else {}))
        greedy = dataclasses.replace(one.greedy, text="else")
        store.put(store.runs()[0], [dataclasses.replace(one, greedy=greedy)])
    if wrong == "overlap":
        with SampleStore(shard(sharded, 2)) as store:
            store.put("main", [one])
    before = (sharded / "samples.db").read_bytes()
    told = {"answers": rf"shard-1-of-3\.db: question '{one.question_id}' under '{one.condition}' has other answers in ",
            "settings": r"samples\.db: run 'main' was begun with n = 3, ",
            "overlap": rf"shard-2-of-3\.db: overlaps another shard \(question '{one.question_id}' "}[wrong]  # fmt: skip
    with pytest.raises(UserError, match=told):
        merge(sharded)
    assert (sharded / "samples.db").read_bytes() == before


def test_a_run_begun_in_the_store_while_shards_are_merged_is_kept(sharded, monkeypatch):
    script = load("data_gen/merge.py")
    copied = script.merge

    def beside_another(parts, run, store):
        yield from copied(parts, run, store)
        with SampleStore(sharded / "samples.db") as other:
            other.begin("other", {"model": "another"})

    monkeypatch.setattr(script, "merge", beside_another)
    with pytest.raises(
        UserError, match=r"samples\.db: another command began it meanwhile; run the same command again$"
    ):
        script.main(parse_args(script.MergeConfig, ["--run", str(sharded)]))
    with SampleStore(sharded / "samples.db", read_only=True) as store:
        assert store.runs() == ["other"] and store.run_meta("other") == {"model": "another"}
    assert not list(sharded.glob("samples.db.partial*"))


@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 8))
def test_every_window_is_in_exactly_one_shard(total, size, count):
    asks = list(range(total))
    shards = [Shard(i, count) for i in range(1, count + 1)]
    windows = [list(shard.windows(asks, size)) for shard in shards]
    assert sorted(w for part in windows for w in part) == list(Shard().windows(asks, size))
    for shard, part in zip(shards, windows, strict=True):
        assert not part or shard.n_requests(total, size) == sum(map(len, part))


def test_text_file_name_and_turn():
    assert list(Shard(2, 3).windows(range(20), 3)) == [[3, 4, 5], [12, 13, 14]]
    assert Shard.parse(None) == Shard(1, 1) and Shard.parse(None).is_whole
    assert Shard.parse(" 3/8 ") == Shard(3, 8)
    assert Shard(3, 8).store_name == "samples.shard-3-of-8.db"
    assert Shard().store_name == Shard.parse("1/1").store_name == "samples.db"


@pytest.mark.parametrize("text", ["0/4", "5/4", "2", "a/b", "-1/3", "1/0", ""])
def test_a_wrong_shard_is_one_line(text):
    with pytest.raises(UserError, match=r"expected 1/n to n/n .*--array=1-n"):
        Shard.parse(text)


def test_a_shard_with_nothing_in_it_is_refused():
    assert Shard(3, 3).n_requests(21, 10) == 1
    with pytest.raises(UserError, match="21 prompts are 3 windows of 10; use at most 3 shards"):
        Shard(4, 4).n_requests(21, 10)
