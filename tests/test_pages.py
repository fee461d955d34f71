"""The pages of docs/: stored figures, links, examples of public names, variables."""

import doctest
import json
import re
import sys
from pathlib import Path

import pytest
from support import gate_folders
from tiny_kbm import make_folder

import kbtrain
from kbtrain.questions.catalogue import DATA_SETS

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs" / "_ext"))

import blocks  # noqa: E402 - beside Sphinx's settings, not in the package
import examples  # noqa: E402
import figures  # noqa: E402

PAGES = list(figures.pages())


def test_figures_of_every_page_are_those_of_the_store():
    store = figures.read_store()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        filled = blocks.fill(text, "figures", lambda name: figures.render(name, store))
        assert filled == text, f"{page}: run: make figures"
        assert text.count("<!-- figures:") == len(blocks.pattern("figures").findall(text)), page


def test_every_text_with_figures_is_on_a_page():
    shown = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [name for name in figures.sentences() if f"<!-- figures: {name} -->" not in shown] == []


def test_readme_s_example_prints_the_stored_decisions(tmp_path):
    store, text = figures.read_store(), (ROOT / "README.md").read_text(encoding="utf-8")
    shown = [f"# {decided['score']:.2f} {decided['retrieve']}" for decided in map(json.loads, store["demo"]["decide"])]
    assert len(shown) == 2 and all(line in text for line in shown)
    (tmp_path / "README.md").write_text(text.replace(shown[0], "# 0.01 True"), encoding="utf-8")
    figures.write_example(store, tmp_path / "README.md")
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == text


def test_intervals_by_hand_that_stand_on_two_pages_are_in_the_store():
    interval = re.compile(r"[-+]?\d+\.\d+ \[[-+]?\d+\.\d+, [-+]?\d+\.\d+\]")
    store = figures.read_store()
    stored = json.dumps(store) + "".join(f"{one['effect'].split(' ')[0]} {one['interval']} " for one in store["claims"])
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    for page in (ROOT / "README.md", *(ROOT / "docs" / "results").glob("*.md")):
        for value in interval.findall(blocks.pattern("figures").sub("", texts[page])):
            alone = sum(value in text for text in texts.values()) == 1
            assert alone or value in stored, f"{page.name}: {value} is on other pages, too; put it into figures.json"


def test_a_run_of_the_demo_goes_into_the_store(tmp_path):
    closing = (
        "tested            model m · 4 test questions",
        "cost              1,000 questions: 600 searches, 1,000 prompt and 20 completion tokens, 8.5 ms a question"
        ", 0.65 USD; always: 1,000 searches, 2,000 prompt and 10 completion tokens, 7 ms a question, 1.04 USD",
        'next              kbtrain decide runs/demo/probe "a question"; open /home/me/runs/demo/report.html',
    )
    (tmp_path / "chain.log").write_text("[1/2] collect\n" + "\n".join(closing) + "\n")
    rows = ("| gate | saved | right | against always | chance |", "|---" * 5 + "|",
            "| never search | 100.0 | 25.0 | - | - |",
            "| retriever gap (saves passages) | 50.0 | 45.0 | -5.0 \\[-7.0, -2.0\\] | +1.0 \\[-1.0, +3.0\\] |",
            "| probe benefit | 40.0 \\[30.0, 50.0\\] | 60.0 | +10.0 \\[+7.0, +12.0\\] | - |")  # fmt: skip
    table = "\n".join(rows)
    (tmp_path / "report.md").write_text(f"# Report\n\n{table}\n\n| gate | other |\n|---|---|\n")
    gates = {"llm_only": 0.25, "all_rag": 0.5, "probe_benefit": 0.6}
    change = {"mean": 0.1, "low": -0.05, "high": 0.25}
    common = {"retrieval_ratio": 0.6, "delta_vs_all_rag": change}
    results = [{"gate": name, "accuracy": one, **common} for name, one in gates.items()]
    (tmp_path / "results.json").write_text(json.dumps({"gates": results}))
    common = {"n": 4, "low": 0.1, "high": 0.9, "broken": 0, "prompt_tokens": 60.4}
    never, one = ({**common, "setting": {"candidates": "c", "k": k}, "right": 1 + k, "repaired": k} for k in (0, 1))
    pilot = {"never": never, "settings": [one], "chosen": one["setting"]}
    (tmp_path / "pilot.json").write_text(json.dumps(pilot))
    store = figures.read_store()
    figures.store_run(store, tmp_path)
    demo = store["demo"]
    assert demo["pilot"][1] == ["1, chosen", "50.0 [10.0, 90.0]", "1", "0", "60"]
    assert demo["front"][-2] == ["probe, the best gate on dev", "600", "60.0", "+10.0 [+7.0, +12.0]"]
    assert demo["gates"]["rows"][2][:2] == ["probe benefit", "40.0 [30.0, 50.0]"]
    assert demo["closing"][-1].endswith("open runs/demo/report.html")
    assert demo["right"] == {"never search": "25.0", "always search": "50.0", "probe benefit": "60.0"}
    assert demo["gate"] == "probe_benefit" and demo["effect"] == "+10.0 [+7.0, +12.0]"
    figures.store_resplits(store, [["right answers", "41.0 %", "-1.0", "+2.0", "3 %"]])
    claim = next(claim for claim in store["claims"] if claim["theme"] == "demo")
    assert (claim["effect"], claim["interval"]) == ("+10.0 points", "[+7.0, +12.0]")
    assert claim["what else is known"].startswith("**no**: -1.0 points and 41.0 % skipped, mean of 300 re-splits of")
    counted = dict(searches=600, prompt_tokens=1000, completion_tokens=20, ms=8.5)
    demo["bills"] = {
        "features_benefit": {**counted, "right": 60.0, "money": 0.63},
        "probe_benefit": {**counted, "right": 60.0, "money": 0.65},
        "all_rag": {**counted, "searches": 1000, "right": 50.0, "money": 1.04},
    }
    assert figures.render("demo-cost", store).splitlines()[2:5] == [
        "| `features` | 600 | 1,000 | 20 | 8 | 60.0 % | USD 0.03 | USD 0.63 | USD 3.03 |",
        "| probe benefit | 600 | 1,000 | 20 | 8 | 60.0 % | USD 0.05 | USD 0.65 | USD 3.05 |",
        "| always search | 1,000 | 1,000 | 20 | 8 | 50.0 % | USD 0.04 | USD 1.04 | USD 5.04 |",
    ]


def test_links_between_pages_lead_to_files():
    missing = []
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        links = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", page.read_text(encoding="utf-8"))
        missing += [f"{page.relative_to(ROOT)}: {link}" for link in links if not (page.parent / link).exists()]
    assert missing == []


def test_the_examples_of_the_public_names_print_what_is_shown(tmp_path, monkeypatch):
    assert set(examples.EXAMPLES) == set(kbtrain.__all__) - {"__version__"}
    gate_folders.stack(tmp_path / "runs" / "demo" / "stack", "benefit")
    make_folder(tmp_path / "models" / "my-model")
    monkeypatch.chdir(tmp_path)
    for name, text in examples.EXAMPLES.items():
        test = doctest.DocTestParser().get_doctest(text, {"kbtrain": kbtrain}, name, None, 0)
        told: list[str] = []
        assert doctest.DocTestRunner().run(test, out=told.append).failed == 0, "".join(told)


def test_every_variable_that_the_code_reads_is_in_the_reference():
    code = [path.read_text(encoding="utf-8") for path in (ROOT / "kbtrain").rglob("*.py")]
    read = {name for text in code for name in re.findall(r'"(KBTRAIN_\w+|[A-Z]+_API_KEY)"', text)}
    page = (ROOT / "docs/reference/environment.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE))
    assert {"KBTRAIN_CACHE", "KBTRAIN_URL", "OPENAI_API_KEY"} <= read <= listed


REPRODUCE = (ROOT / "docs" / "results" / "reproduce.md").read_text(encoding="utf-8")
ROW = r"^\| (\w\w-[\w-]+) \| `(\w+)` \| ([\d,]+|what `collect` counts) \| (\d+) \| ([\d.]+)[^|]*\| ([\d.]+)[^|]*\|$"


def test_every_set_of_the_paper_has_its_command_and_its_hours():
    rows = re.findall(ROW, REPRODUCE, re.MULTILINE)
    assert len(rows) == 11 and {name[:2] for name, *_ in rows} == {"en", "zh"}
    made = dict(re.findall(r"run collect --run runs/(\w+) --dataset (\w+)", REPRODUCE))
    tabled = re.findall(r"runs/(\w+)", re.findall(r'--runs "(\[runs/nq,[^"]*\])"', REPRODUCE)[0])
    assert set(made.values()) == {dataset for _, dataset, *_ in rows} <= set(DATA_SETS)
    assert list(made) == tabled
    for _, _, size, tokens, alone, labels in rows:
        n = int(size.replace(",", "")) if size[0].isdigit() else 1_000
        assert float(alone) == pytest.approx(n * (1_700 / 10_000 + 2 * int(tokens) / 2_000) / 3_600, abs=0.0051)
        whole = n * ((100 + 2 * 1_600) / 10_000 + 3 * 31 * int(tokens) / 2_000) / 3_600
        assert float(labels) == pytest.approx(whole, abs=0.051)


def test_gates_score_the_splits_that_were_collected():
    collected = set(re.findall(r"run collect --run .* --split (\w+)", REPRODUCE))
    scored = re.findall(r"^kbtrain run score .*$", REPRODUCE, re.MULTILINE)
    assert collected == {"test"} and [re.findall(r'--splits "\[(.*?)\]"', line) for line in scored] == [["test"]]
    # without sampled answers there are no others to label by
    assert "`--by greedy` for `kbtrain run label`" in REPRODUCE
