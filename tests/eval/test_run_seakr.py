"""The whole of SeaKR on a tiny model: make the gate, score with it, answer by both methods, resume, read the page."""

from pathlib import Path

import pytest
from support.scripts import load
from support.snippets import run_snippet
from tiny_kbm import make_folder

from kbtrain.errors import UserError
from kbtrain.gate.card import read_gate_json
from kbtrain.gates.scoring import ScoreFile
from kbtrain.gates.seakr.signals import SIGNALS
from kbtrain.io import jsonl
from kbtrain.io.provenance import read_meta
from kbtrain.labeling.examples import example
from kbtrain.rag.seakr_traces import Trace
from kbtrain.records import Passage, Question

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seakr_run")
    make_folder(folder / "model")
    questions = [
        Question(f"{split}{i}", f"What is the capital of place {first + i}?", (f"x{first + i}",), split, "t")
        for split, first, n in (("dev", 5, 4), ("test", 0, 5)) for i in range(n)
    ]  # fmt: skip
    jsonl.write(folder / "questions.jsonl", questions)
    places = [
        Passage(f"p{i}", f"Place {i}", f"The capital of place {i} is x{i}. " * (1 + 60 * (i == 3))) for i in range(9)
    ]
    jsonl.write(folder / "passages.jsonl", places)
    for split in ("dev", "test"):
        rows = [example(q, None) for q in questions if q.split == split]
        jsonl.write(folder / "examples" / f"{split}.jsonl", rows)
    recipe = load("recipes/make_seakr.py")
    recipe.main(recipe.MakeSeakrConfig(
        model=str(folder / "model"), output=folder / "seakr", k=3, max_new_tokens=4, dtype="fp32",
        max_prompt_tokens=1200,
    ))  # fmt: skip
    return folder


def configured(script, folder, **changes):
    module = script("run_seakr")
    base = {"run": folder, "demonstrations": 2, "max_new_tokens": 6, "documents": 2, "threshold_questions": 3}
    base |= {} if changes.get("method") == "single_hop" else {"max_steps": 3, "chain_tokens": 12}
    return module, module.RunSeakrConfig(**{**base, **changes})


def test_the_folder_says_layer_scale_and_sources(run_folder):
    card = read_gate_json(run_folder / "seakr")
    assert card["kind"] == "seakr" and card["settings"]["layer"] == 0 and card["settings"]["mlp"] == "mlp"
    assert len(run_snippet(run_folder / "seakr")) == 2


def test_every_signal_is_scored_once_with_its_cost(script, run_folder):
    score = script("score")
    config = score.ChoiceConfig(run=run_folder, only=("seakr",), chunk=4)
    score.main(config)
    meta = read_meta(run_folder / "scores" / "seakr.jsonl")
    assert meta["spent_per_question"]["seakr"]["test"]["samples"] == 3.0
    assert meta["spent_per_question"]["perplexity"]["dev"]["requests"] == 1.0
    from kbtrain.evaluation.scores import read_scores

    scores = read_scores(run_folder / "scores" / "seakr.jsonl")
    assert set(scores) == set(SIGNALS) and all(len(found) == 9 for found in scores.values())
    assert ScoreFile  # its counts survive a second run, in which nothing is left to score
    score.main(config)
    assert read_meta(run_folder / "scores" / "seakr.jsonl")["spent_per_question"]["seakr"]["test"]["samples"] == 3.0


@pytest.mark.parametrize("method", ["single_hop", "multi_hop"])
def test_a_method_answers_every_question_and_leaves_a_page(script, run_folder, method, capsys):
    module, config = configured(script, run_folder, method=method)
    module.main(config)
    out = run_folder / "methods" / f"seakr_{method}.jsonl"
    traces = list(jsonl.read(Trace, out))
    assert sorted(t.question_id for t in traces) == [f"test{i}" for i in range(5)]
    for t in traces:
        chains = sum(way.name == "documents" for way in t.strategies)  # greedy texts, without samples
        assert t.error is None and t.spent.samples == 3 * (t.spent.requests - chains)
    assert len({t.threshold for t in traces}) == 1
    assert any(t.spent.searches for t in traces)
    assert any(
        t.document_tokens_cut for t in traces if any("Place 3" in c.title for s in t.steps for c in s.candidates)
    )
    assert "What is the capital of place 1?" in out.with_suffix(".html").read_text()
    assert read_meta(out)["summary"]["spent"]["requests"] == sum(t.spent.requests for t in traces)
    assert f"seakr_{method}: 5 questions" in capsys.readouterr().out


def test_an_interrupted_run_goes_on_at_the_next_question(script, run_folder, monkeypatch):
    module, config = configured(script, run_folder, method="multi_hop", name="cut", at_once=1)
    import kbtrain.rag.seakr_run as library

    whole = library.answer_all

    def killed(*args, **kwargs):
        for i, trace in enumerate(whole(*args, **kwargs)):
            if i == 2:
                raise KeyboardInterrupt
            yield trace

    monkeypatch.setattr(library, "answer_all", killed)
    with pytest.raises(KeyboardInterrupt):
        module.main(config)
    out = run_folder / "methods" / "cut.jsonl"
    first = out.read_text()
    assert len(first.splitlines()) == 2
    monkeypatch.setattr(library, "answer_all", whole)
    module.main(config.model_copy(update={"batch_rows": 7, "batch_prompt_tokens": 4096}))  # on a larger machine, say
    assert out.read_text().startswith(first)
    ids = [t.question_id for t in jsonl.read(Trace, out)]
    assert sorted(ids) == [f"test{i}" for i in range(5)]


def test_other_settings_under_the_same_name_are_refused(script, run_folder):
    module, config = configured(script, run_folder, method="multi_hop", name="settings", limit=1)
    module.main(config)
    with pytest.raises(UserError, match="begun with documents = 2, now it is 3"):
        module.main(config.model_copy(update={"documents": 3}))


def test_the_ablations_are_methods_of_their_own_and_a_second_run_only_reads(script, run_folder, capsys):
    module = script("ablate_seakr")
    config = module.AblateSeakrConfig(
        run=run_folder, demonstrations=1, max_new_tokens=3, threshold_questions=2, limit=1, max_steps=2, chain_tokens=9,
        ablations=("measure", "documents", "parts"),
    )  # fmt: skip
    module.main(config)
    text = capsys.readouterr().out
    for variant in ("full", "token_entropy", "documents_10", "no_rerank_no_reason"):
        assert (run_folder / "methods" / f"multi_hop_{variant}.jsonl").exists() and variant in text
    assert "11 variants on 1 questions" in text and "right: minus full" in text and "[" in text
    before = (run_folder / "methods" / "multi_hop_full.jsonl").read_bytes()
    assert "prompts given to the model" in text
    module.main(config)
    assert "prompts" not in capsys.readouterr().out
    assert (run_folder / "methods" / "multi_hop_full.jsonl").read_bytes() == before


def test_a_question_that_is_there_twice_is_refused_before_anything_is_asked(script, run_folder, tmp_path):
    """Its second answer would stand under the name of its first."""
    lines = (run_folder / "questions.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "questions.jsonl").write_text("".join((*lines, lines[6], lines[0])))
    (tmp_path / "passages.jsonl").write_text((run_folder / "passages.jsonl").read_text())
    jsonl.write(tmp_path / "evidence.jsonl", [])
    run, gate = {"run": tmp_path}, {"seakr": run_folder / "seakr"}
    score, ablate = (script(name) for name in ("score_reference", "ablate_seakr"))
    for module, config in (
        configured(script, tmp_path, **gate),
        (ablate, ablate.AblateSeakrConfig(**run, **gate)),
        (score, score.ScoreReferenceConfig(**run)),
    ):
        with pytest.raises(UserError, match=r"questions\.jsonl:10: field 'id': duplicate 'test2', first in line 7$"):
            module.main(config)
    assert not (tmp_path / "methods").exists()
