"""data_gen/export.py: what comes out is what is stored."""

from kbtrain.io import jsonl
from kbtrain.io.provenance import read_meta
from kbtrain.io.store import SampleStore
from kbtrain.records import SampleSet


def test_an_export_holds_every_answer(run_folder, script):
    out = run_folder / "out" / "samples.jsonl"
    done = script("export", "--store", str(run_folder / "samples.db"), "--output", str(out))
    assert done.returncode == 0, done.stderr
    with SampleStore(run_folder / "samples.db", read_only=True) as store:
        stored = list(store.iterate("main"))
    assert list(jsonl.read(SampleSet, out)) == stored and read_meta(out)["n_records"] == len(stored)
    done = script("export", "--store", str(run_folder / "samples.db"), "--output", str(out.with_suffix(".parquet")))
    assert done.returncode == 2 and "cannot export to '.parquet'; name a .jsonl file" in done.stderr
