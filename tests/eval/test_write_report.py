"""eval/write_report.py: complete, self-contained, escaped, and the same bytes every time."""

import contextlib
import io
import itertools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from html_page import Page, allowed_script
from support import scripts
from support.files import keep_change

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.provenance import write_meta
from kbtrain.metrics.ranking import normalised_area
from kbtrain.records import Question
from kbtrain.report.words import gate_name
from kbtrain.show import p_value

PRICES = Path(__file__).resolve().parents[2] / "eval" / "configs" / "prices.yaml"
GATES = ("prompt", "kbm_mastery", "kbm_certainty", "kbm_benefit")


@pytest.fixture(scope="module")
def written(evaluated, tmp_path_factory):
    """The evaluated run folder with its report; what that said is in said.txt beside it."""
    folder = Path(shutil.copytree(evaluated, tmp_path_factory.mktemp("report") / "run"))
    module = scripts.load("eval/write_report.py")
    with contextlib.redirect_stdout(io.StringIO()) as said:
        module.main(build(module.ReportConfig, None, {"run": folder}))
    (folder.parent / "said.txt").write_text(said.getvalue())
    return folder


def evaluate(folder, **settings):
    module = scripts.load("eval/end_to_end.py")
    module.main(build(module.EndToEndConfig, None, {"run": folder, "bootstrap_draws": 100, **settings}))


Chosen = dict[str, tuple[float, dict[str, float]]]


def chosen_on_dev(folder):
    """Gate -> (the highest cut that searches for half of dev, its scores), worked here; rows of outcomes.jsonl."""
    rows = [json.loads(line) for line in (folder / "outcomes.jsonl").read_text().splitlines()]
    scores: dict[str, dict[str, float]] = {}
    for line in (folder / "scores/gates.jsonl").read_text().splitlines():
        record = json.loads(line)
        scores.setdefault(record["gate"], {})[record["question_id"]] = record["score"]
    chosen: Chosen = {}
    for gate, of in scores.items():
        dev = sorted({of[row["question_id"]] for row in rows if row["split"] == "dev"})
        cuts = [dev[0] - 1, *((a + b) / 2 for a, b in itertools.pairwise(dev)), dev[-1] + 1]
        aside = {cut: abs(saved_and_changed(rows, of, cut, "dev")[0] - 0.5) for cut in cuts}
        chosen[gate] = max(cut for cut in cuts if aside[cut] <= min(aside.values()) + 1e-9), of
    return chosen, rows


def saved_and_changed(rows, of, cut, split):
    """Share of searches skipped, and accuracy minus that of always searching."""
    part = [row for row in rows if row["split"] == split]
    searched = [of[row["question_id"]] > cut for row in part]
    right = [row["rag_correct"] if s else row["llm_correct"] for s, row in zip(searched, part, strict=True)]
    return 1 - sum(searched) / len(part), (sum(right) - sum(row["rag_correct"] for row in part)) / len(part)


def dev_area(rows, of):
    """Oracle-normalised area of a gate's order of the dev questions."""
    dev = [row for row in rows if row["split"] == "dev"]
    scores = np.array([of[row["question_id"]] for row in dev])
    llm, rag = (np.array([float(row[name]) for row in dev]) for name in ("llm_correct", "rag_correct"))
    return normalised_area(scores, llm, rag) or 0.0


def write(script, folder, **settings):
    module = script("write_report")
    module.main(build(module.ReportConfig, None, {"run": folder, **settings}))


def test_the_page_is_well_formed_and_loads_nothing(written):
    page = Page((written / "report.html").read_text())
    assert page.loaded == []
    assert page.links == [f"gates/{gate}.html" for gate in GATES]
    assert page.tags.count("script") == 1
    allowed_script((written / "report.html").read_text())
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("svg") == 2  # the slider's curve, and all curves
    style = re.sub(r"<style>.*?</style>", "", (written / "report.html").read_text(), flags=re.DOTALL)
    assert not re.search(r"@import|url\((?!#)", style)


def test_the_page_says_what_was_measured(written):
    text = Page((written / "report.html").read_text()).text
    results = json.loads((written / "results.json").read_text())
    for gate in results["gates"]:
        assert gate_name(gate["gate"]) in text
        assert f"{100 * gate['accuracy']:.1f}" in text
    for said in ("n = 200", "accuracy of greedy answers", "NOT better than random", "0123456789abcdef", "made-up"):
        assert said in text
    assert re.search(r"NOT better than random[^.]*: [^.]*\basking the model itself\b", text)
    assert re.search(r"Better than kind of question alone[^.]*: [^.]*\bKBM, benefit\b", re.sub(r"\d %", "", text))
    read = text[: text.index("Provenance")]
    assert "kbm_benefit" not in read  # gates in words, percent everywhere
    assert f"{100 * results['gates'][-1]['auroc']:.1f}" in read
    gates, pairs = results["gates"], [c["mcnemar"] for c in results["comparisons"] if c["mcnemar"]]
    p_values = {
        p_value(p).lstrip("<") for p in (*(g["p_vs_random_holm"] for g in gates), *(m["p_holm"] for m in pairs))
    }
    assert set(re.findall(r"(?<![\w.])[+-]?\.\d{3}(?!\d|rem)", read)) <= p_values


def test_a_script_in_a_question_stays_text(script, run_folder):
    questions = (run_folder / "questions.jsonl").read_text()
    evil = json.dumps("</dd><script>alert(1)</script> | [x](javascript:1)\n# <img src=x onerror=alert(1)>")
    changed = re.sub(r'"text": "What is fact \d+ of test\?"', lambda _: f'"text": {evil}', questions)
    (run_folder / "questions.jsonl").write_text(changed)
    keep_change(run_folder / "questions.jsonl")
    end_to_end = script("end_to_end")
    end_to_end.main(build(end_to_end.EndToEndConfig, None, {"run": run_folder, "bootstrap_draws": 100}))
    write(script, run_folder, title="<script>alert(2)</script>")
    for name in ("report.html", *(f"gates/{gate}.html" for gate in GATES)):
        text = (run_folder / name).read_text()
        page = Page(text)
        assert "alert(" not in allowed_script(text) and "img" not in page.tags
        assert page.tags.count("script") == 1
        assert "<script>alert(1)</script>" in page.text
    markdown = (run_folder / "report.md").read_text()
    assert "<script" not in markdown and "<img" not in markdown and "\n# <" not in markdown
    assert "\\[x\\](javascript:1)<br>\\# &lt;img" in markdown


def test_the_same_input_gives_the_same_bytes(script, written):
    before = [(written / name).read_bytes() for name in ("report.html", "report.md")]
    write(script, written)
    assert [(written / name).read_bytes() for name in ("report.html", "report.md")] == before


def test_markdown_tables_have_as_many_cells_in_every_row(written):
    for block in re.findall(r"(?:^\|.*\n)+", (written / "report.md").read_text(), re.MULTILINE):
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(cells) == 1, block


def test_an_unknown_gate_or_schema_is_one_line(script, written, tmp_path):
    with pytest.raises(UserError, match="did you mean 'kbm_mastery'"):
        write(script, written, gate="kbm_masteri")
    (tmp_path / "results.json").write_text('{"schema": 2}')
    with pytest.raises(UserError, match=r"results.json: no metadata beside it says where it comes from; run eval/end"):
        write(script, tmp_path)
    write_meta(tmp_path / "results.json", stage="end_to_end", config={}, inputs=[])
    with pytest.raises(UserError, match=r"results.json: schema is 2, expected 1; run eval/end_to_end.py again"):
        write(script, tmp_path)


def test_each_gate_has_a_page_with_its_worst_errors_first(written):
    results = {gate["gate"]: gate for gate in json.loads((written / "results.json").read_text())["gates"]}
    chosen, rows = chosen_on_dev(written)
    test = [row for row in rows if row["split"] == "test"]
    for name in GATES:
        html = (written / "gates" / f"{name}.html").read_text()
        page = Page(html)
        assert page.loaded == []
        assert page.links == ["../report.html", *(f"{other}.html" for other in GATES if other != name)]
        needed = results[name]["needed"]
        wrong = [int(n) for n in re.findall(r"<p class=\"muted\">(\d+) of 200:", html)]
        cut, of = chosen[name]
        searched = [row for row in test if of[row["question_id"]] > cut]
        right = sum(row["rag_correct"] and not row["llm_correct"] for row in searched)
        assert wrong == [len(searched) - right, needed["n_positive"] - right]
        missed = html[html.index("False negatives") :]
        scores = [float(score) for score in re.findall(r"score (-?[\d.]+) ·", missed)]
        assert scores == sorted(scores) and len(scores) == min(25, wrong[1])
        assert "Some text." in page.text  # the passage


def test_the_main_gate_by_part_adds_up_to_the_whole(written):
    results = {gate["gate"]: gate for gate in json.loads((written / "results.json").read_text())["gates"]}
    markdown = (written / "report.md").read_text()
    block = markdown[markdown.index("## KBM, benefit by relation") :].split("\n\n")[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()[2:]]
    assert [(row[0], row[1]) for row in rows] == [(f"relation{i}", "50") for i in range(4)]
    mean = sum(float(row[4]) for row in rows) / 4
    (cut, of), outcomes = chosen_on_dev(written)[0]["kbm_benefit"], chosen_on_dev(written)[1]
    change = saved_and_changed(outcomes, of, cut, "test")[1]
    assert mean == pytest.approx(100 * (results["all_rag"]["accuracy"] + change), abs=0.06)


def test_bills_stand_in_the_report_where_they_were_made(script, evaluated_run):
    cost = script("cost")
    cost.main(build(cost.CostConfig, None, {"run": evaluated_run, "prices": PRICES}))
    write(script, evaluated_run)
    text = Page((evaluated_run / "report.html").read_text()).text
    assert "What it costs" in text and "USD per 1000" in text
    assert "## What it costs" in (evaluated_run / "report.md").read_text()
    evaluate(evaluated_run, target_ratio=0.2)
    with pytest.raises(UserError, match=r"cost.json: made from another results.json; run eval/cost.py again"):
        write(script, evaluated_run)
    cost.main(build(cost.CostConfig, None, {"run": evaluated_run, "prices": PRICES}))
    (evaluated_run / "cost.json").write_text('{"schema": 3}')
    with pytest.raises(UserError, match=r"cost.json: was changed since cost made it; run eval/cost.py again"):
        write(script, evaluated_run)


def test_the_first_screen_speaks_of_the_gate_that_saves_most_on_dev_at_the_threshold_chosen_there(written):
    said = (written.parent / "said.txt").read_text().splitlines()
    chosen, rows = chosen_on_dev(written)
    best = max(chosen, key=lambda gate: dev_area(rows, chosen[gate][1]))
    saved, change = saved_and_changed(rows, chosen[best][1], chosen[best][0], "test")
    text = Page((written / "report.html").read_text()).text.replace("\u00a0", " ")
    name = gate_name(best)
    sentence = (
        f"{name[:1].upper() + name[1:]}, the best of 4 gates on dev, skips {100 * saved:.1f} % of the searches for "
    )
    assert sentence + f"{-100 * change:.1f} points of accuracy" in text
    assert "model made-up · 200 test questions of made-up" in text
    block = said[-7:]
    names = ["tested", "without search", "always searching", "with the gate", "is that real?", "cost", "next"]
    assert [re.split(r"  +", line)[0] for line in block] == names
    searches = round(1000 * (1 - saved))  # 20 prompt and 4 completion tokens for each stored answer
    assert f"A thousand questions: {searches:,} searches, 20,000 prompt and 4,000 completion tokens, " in block[5]
    assert (
        "; always searching: 1,000 searches, 20,000 prompt and 4,000 completion tokens, 441 ms a question, 1.01 USD"
        in (block[5])
    )
    assert f"{100 * saved:.1f} % of the searches skipped" in block[3] and block[6].endswith(
        str(written / "report.html")
    )


def test_the_first_screen_and_every_gate_page_say_that_accuracy_is_the_expected_one(script, sampled_run, capsys):
    end_to_end = script("end_to_end")
    settings = {"run": sampled_run, "bootstrap_draws": 100, "accuracy": "expected"}
    end_to_end.main(build(end_to_end.EndToEndConfig, None, settings))
    capsys.readouterr()
    write(script, sampled_run)
    kind = "expected accuracy (mean share of right sampled answers)"
    assert kind in next(line for line in capsys.readouterr().out.splitlines() if line.startswith("tested "))
    report, page = ((sampled_run / name).read_text() for name in ("report.html", "gates/kbm_benefit.html"))
    assert all(kind in text.partition('class="muted">')[2].partition("</p>")[0] for text in (report, page))
    assert "Counts of greedy answers." in page  # the two-by-two has them


FOUR_FOLD = (
    r"(\d+) repaired\s*(\d+) in vain,\s*(\d+) broken\s*did not search\s*(\d+) missed\s*(\d+) saved,\s*(\d+) spared"
)


def test_the_tiles_the_counts_and_the_examples_of_the_first_screen_are_one_gate_s(written):
    html = (written / "report.html").read_text()
    start = html[: html.index("<details>")]
    tiles = re.findall(r"<h2>(.*?)</h2><b>(.*?)</b><span>(.*?)</span>", start)
    results = {gate["gate"]: gate for gate in json.loads((written / "results.json").read_text())["gates"]}
    chosen, rows = chosen_on_dev(written)
    best = max(chosen, key=lambda gate: dev_area(rows, chosen[gate][1]))
    cut, of = chosen[best]
    saved, change = saved_and_changed(rows, of, cut, "test")
    found = re.search(FOUR_FOLD, Page(html).text)
    assert found is not None
    well, vain, broken, missed, left, spared = map(int, found.groups())
    always = results["all_rag"]["accuracy"]
    assert [(name, figure) for name, figure, _ in tiles] == [
        ("searches", f"200 → {well + vain}"),
        ("right answers", f"{100 * always:.1f} → {100 * (always + change):.1f} %"),
        ("breaks avoided", f"{spared} of {spared + broken}"),
        ("repairs kept", f"{well} of {well + missed}"),
    ]
    assert missed + left == pytest.approx(200 * saved)
    assert all(re.search(r"\[[+-]?[\d.]+, [+-]?[\d.]+\]", measure) for _, _, measure in tiles)
    asked = re.findall(r"<p><b>(.*?)</b></p>", start)
    fates = {}
    questions = {q.text: q.id for q in jsonl.read(Question, written / "questions.jsonl")}
    for row in rows:
        fates[row["question_id"]] = row["llm_correct"], row["rag_correct"], of[row["question_id"]] > cut
    assert [fates[questions[text]] for text in asked] == [(True, False, False), (False, True, False)]
    five = re.findall(r"<tr><td>(.*?)</td>", start[start.index('class="five"') :])
    assert five == ["never search", "always search", "kind of question alone", gate_name(best)]


def test_the_slider_s_curve_goes_from_never_to_always(written):
    html = (written / "report.html").read_text()
    right, money = (json.loads(re.findall(rf'data-{name}="(.*?)"', html)[0]) for name in ("right", "money"))
    results = {gate["gate"]: gate for gate in json.loads((written / "results.json").read_text())["gates"]}
    ends = [round(100 * results[name]["accuracy"], 1) for name in ("llm_only", "all_rag")]
    assert [right[0], right[100]] == ends and len(right) == len(money) == 101
    assert money[100] == pytest.approx(1.01, abs=0.01) and money == sorted(money)


def test_a_gate_page_begins_with_its_two_by_two(written):
    results = {gate["gate"]: gate for gate in json.loads((written / "results.json").read_text())["gates"]}
    chosen, rows = chosen_on_dev(written)
    for name in GATES:
        text = Page((written / "gates" / f"{name}.html").read_text()).text
        start = text[: text.index("Share of questions that need a search")]  # the first figure's caption
        found = re.search(FOUR_FOLD, start)
        assert found is not None
        well, vain, broken, missed, saved, spared = map(int, found.groups())
        left_out, change = saved_and_changed(rows, chosen[name][1], chosen[name][0], "test")
        assert missed + saved == pytest.approx(200 * left_out) and well + vain + missed + saved == 200
        assert spared - missed == pytest.approx(200 * change) and broken <= vain
        words = (
            f"{gate_name(name)} skips {100 * left_out:.1f} % of the searches"  # as the report's first screen says it
        )
        assert words in text.replace("\u00a0", " ") or "Always search" in text
        assert well + missed == results[name]["needed"]["n_positive"]


def test_a_result_that_is_not_what_was_computed_is_refused(script, evaluated_run):
    results = evaluated_run / "results.json"
    made = results.read_text()
    results.write_text(re.sub(r'"accuracy": 0\.\d+', '"accuracy": 0.99', made))
    with pytest.raises(
        UserError, match=r"results\.json: was changed since end_to_end made it; run eval/end_to_end\.py again"
    ):
        write(script, evaluated_run)
    results.write_text(made)
    write(script, evaluated_run)
    labels = evaluated_run / "labels.jsonl"
    labels.write_text("".join(labels.read_text().splitlines(keepends=True)[:-1]))
    write_meta(labels, stage="label", config={}, inputs=[])  # labelled again
    with pytest.raises(
        UserError, match=r"results\.json: made from another .*labels\.jsonl; run eval/end_to_end\.py again"
    ):
        write(script, evaluated_run)
    evaluate(evaluated_run)
    write(script, evaluated_run)
