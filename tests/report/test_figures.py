"""Curves of a report: labels that never overlap, colours told apart, and few gates on the first screen."""

import re
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kbtrain.evaluation.learning_curve import CurvePoint
from kbtrain.evaluation.savings import Saving, ThresholdSaving
from kbtrain.metrics.significance import Delta
from kbtrain.metrics.thresholds import Promised
from kbtrain.report.curves import (
    KINDS,
    PALETTE,
    Band,
    LineLabel,
    interval_of_draws,
    leaders,
    learning_figure,
    learning_table,
    looks,
    name_ends,
    sliding_curve,
    spread,
)
from kbtrain.report.first_screen import sentences
from kbtrain.show import new_figure, render

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures"


def saving(saved, accuracy, gate="probe_benefit"):
    over, left_out = Delta(0.1, 0.05, 0.15), Delta(saved, 0.0, 1.0)
    here = ThresholdSaving(0.5, saved, accuracy, left_out, Delta(0.029, -0.02, 0.08), over)
    promise = Promised(0.02, 0.1, 100, 149, None)
    return Saving(gate, "best_accuracy", 100, 200, None, here, here, promised=None, promise=promise)


@pytest.mark.parametrize("n", [2, 9, 30])
def test_no_two_names_at_the_ends_overlap_and_they_keep_the_order_of_the_curves(n):
    figure, axes = new_figure(5, 1.0 + n * 2 * 1.3 * 8.5 / 72 + 1)
    axes.set_ylim(30, 60)
    heights = np.random.default_rng(n).uniform(43.5, 44.5, n)  # all curves end near one point
    labels = [LineLabel(f"gate with a name {i}", 94, float(y), "#0072b2") for i, y in enumerate(heights)]
    name_ends(axes, labels)
    figure.draw_without_rendering()
    boxes = {text.get_text().replace("\n", " "): text.get_window_extent() for text in axes.texts}
    ordered = sorted(boxes.values(), key=lambda box: box.y0)
    assert len(ordered) == n and all(low.y1 <= high.y0 for low, high in pairwise(ordered))
    names = sorted(boxes, key=lambda name: boxes[name].y0)
    assert names == [label.text for label in sorted(labels, key=lambda label: label.y)]
    frame = axes.get_window_extent()
    assert ordered[0].y0 >= frame.y0 - 6 and ordered[-1].y1 <= frame.y1 + 6
    assert min(box.x0 for box in ordered) > frame.x1  # beside the curves, not over them


@pytest.mark.parametrize("name", ["accuracy (%)", "a name that is longer than the figure is wide " * 3])
def test_what_stands_around_the_axes_is_in_the_figure_and_leaves_them_room(name):
    figure, axes = new_figure(4.2, 2.9)
    axes.set_ylim(0, 123456)
    axes.set_xlabel(name)
    axes.set_title("All RAG")
    axes.plot([0, 1], [0, 1], label="beside")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    figure.draw_without_rendering()
    around, whole = axes.get_tightbbox(), figure.bbox
    assert around is not None and axes.bbox.width > 0.1 * whole.width and axes.bbox.height > 0.4 * whole.height
    assert around.y0 >= 0 and around.y1 <= whole.y1
    assert bool(around.x0 >= 0 and around.x1 <= whole.x1) is (len(name) < 40)


def test_text_that_matplotlibs_font_lacks_is_drawn_by_the_page_without_a_warning():
    figure, axes = new_figure(4.2, 2.9)
    axes.set_xticks([0], ["中文"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "中文" in render(figure, "chinese")


def test_boxes_that_fit_stay_where_they_are_and_others_share_the_way():
    assert spread(np.array([1.0, 5.0]), np.array([2.0, 2.0]), 0, 10).tolist() == [1, 5]
    assert spread(np.array([4.0, 4.0]), np.array([2.0, 2.0]), 0, 10).tolist() == [3, 5]
    assert spread(np.array([0.0, 9.9]), np.array([2.0, 2.0]), 0, 10).tolist() == [1, 9]


def test_kinds_of_gates_have_colours_of_their_own_and_labels_their_dash():
    found = looks(["stack_benefit", "stack_mastery", "probe_benefit", *(f"g{i}" for i in range(14))])
    assert found["stack_benefit"][0] == found["stack_mastery"][0] != found["probe_benefit"][0]
    assert found["stack_benefit"][1] != found["stack_mastery"][1]
    assert len({colour for colour, _ in found.values()}) == 2 + 14 + 2 and len(set(PALETTE)) == 20


def test_a_sliding_curve_stands_at_the_threshold_and_names_its_levels_apart():
    curve = SimpleNamespace(ratio=[0, 0.5, 1], accuracy=[0.4, 0.6, 0.42])
    shaded = Band([0, 0.5, 1], [0.3, 0.5, 0.3], [0.5, 0.7, 0.5])
    one = saving(0.5, 0.6)
    gate = SimpleNamespace(n=200, curve=curve)
    found = sliding_curve(gate, one, shaded, {"never": 0.4, "always": 0.42}, None, "USD")
    assert (found.searches, found.accuracy, found.dot) == (100, 60.0, (50.0, found.tops[50]))
    assert len(found.right) == len(found.tops) == 101 and found.right[25] == 50.0 and min(found.tops) == found.tops[50]
    assert [level.name for level in found.levels] == ["always 42.0 %", "never 40.0 %"]
    assert found.levels[1].name_top - found.levels[0].name_top == pytest.approx(9)
    assert found.line.startswith(f"0,{found.tops[0]} ") and len(found.band.split()) == 202


def test_the_first_screen_shows_the_gate_named_and_the_best_of_each_other_kind():
    found = [saving(0.5, 0.4, gate) for gate in ("kbm_benefit", "kbm_mastery", "probe_benefit", "stack_benefit",
                                                 "features_benefit", "prompt")]  # fmt: skip
    assert leaders(found, "probe_mastery") == ["probe_mastery", "kbm_benefit", "stack_benefit", "features_benefit"]
    assert len(leaders(found, None)) == KINDS and leaders([], None) == []


@pytest.mark.parametrize(
    ("low", "high", "lost", "said", "ruled_out"),
    [
        (0.01, 0.2, 0.01, "Yes, on these questions", True),
        (-0.1, 0.2, 0.05, "Not shown by these questions", False),
        (-0.2, -0.01, 0.02, "This is worse than chance", True),
    ],
)
def test_a_verdict_says_what_the_questions_show(low, high, lost, said, ruled_out):
    one, change = saving(0.5, 0.4), Delta(0.0, -lost, lost)
    over = Delta((low + high) / 2, low, high)
    one = replace(one, noted=replace(one.noted, change=change, over_random=over))
    gates = [SimpleNamespace(gate=name, accuracy=0.4) for name in ("llm_only", "all_rag")]
    found = sentences(SimpleNamespace(gates=gates), one, 1)
    assert found[2].startswith(said) and ("is ruled out." in found[2]) == ruled_out


def test_a_gate_that_saves_nothing_says_nothing_of_the_others():
    results = SimpleNamespace(gates=[SimpleNamespace(gate=name, accuracy=0.4) for name in ("llm_only", "all_rag")])
    nothing = saving(0.0, 0.4)
    said = [sentences(results, nothing, n) for n in (1, 3)]
    what = "skips no search at its threshold (rule best_accuracy)."
    assert said[0][0] == f"Always search: on 100 dev questions probe benefit {what}"
    assert said[1][0] == f"Always search: on 100 dev questions probe benefit, the best of 3 gates on dev, {what}"


def test_a_learning_curve_has_its_legend_above_the_data_and_no_ticks_that_overprint():
    points = [CurvePoint(gate, key, n, 0, n / 2000, None, None, None) for gate in ("probe", "stack")
              for key in ("mastery", "benefit") for n in (50, 400, 1400, 1521)]  # fmt: skip
    svg = learning_figure(points)
    heights = {text: float(y) for y, text in re.findall(r'y="([\d.]+)"[^>]*>([^<>]+)</text>', svg)}
    assert "1,521" in heights and "400" in heights and "1,400" not in heights
    (frame,) = re.findall(r'<rect x="[\d.]+" y="([\d.]+)"', svg)  # that the curves are clipped to
    names = ("probe, mastery", "probe, benefit", "stack, mastery", "stack, benefit")
    assert all(heights[name] < float(frame) for name in names)
    assert looks(["stack_benefit"])["stack_benefit"][0] in svg  # the colour of the report's curves


def points(n, **areas):
    return [CurvePoint(gate, "benefit", n, i, a, None, None) for gate, of in areas.items() for i, a in enumerate(of)]


def test_the_interval_of_three_draws_is_student_s():
    # mean .3, deviation .1, t of 2 degrees of freedom 4.3027
    low, high = interval_of_draws([0.2, 0.3, 0.4])
    assert (low, high) == (pytest.approx(0.3 - 4.3027 * 0.1 / 3**0.5, abs=1e-5), pytest.approx(0.54842, abs=1e-4))
    assert interval_of_draws([0.3]) == (None, None)


def test_the_best_gates_corrected_area_is_the_mean_over_the_draws_that_it_won():
    made = points(50, features=(0.4, 0.2), probe=(0.3, 0.5))
    won = {("features", 0): 0.36, ("probe", 1): 0.44}
    found = [replace(p, corrected=Delta(won[p.gate, p.draw], 0.0, 1.0)) if (p.gate, p.draw) in won else p for p in made]
    table = learning_table(found, 385)
    place = [column.name for column in table.columns].index("best, corrected")
    assert [(row[0], row[place]) for row in table.rows] == [("features", 0.36), ("probe", 0.44)]
    assert [row[place] for row in learning_table(made, 385).rows] == [None, None]


@pytest.mark.parametrize("path", sorted(FIGURES.glob("*.svg")), ids=lambda path: path.name)
def test_a_page_s_figure_is_legible_on_a_phone(path):
    svg = path.read_text(encoding="utf-8")
    (width,) = re.findall(r'<svg[^>]*? width="([\d.]+)pt"', svg)
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: (?:[a-z]+ )*([\d.]+)px", svg)]
    shrunk = min(1.0, 358 / (float(width) * 4 / 3))  # a phone's column in pixels
    assert sizes and min(sizes) * 4 / 3 * shrunk >= 7
