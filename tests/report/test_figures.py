"""The label at the headline's dot: inside the figure, beside its dot, and never on an axis beyond 100 %."""

from __future__ import annotations

import pytest

from kbtrain.evaluation.savings import Saving
from kbtrain.metrics.significance import Delta
from kbtrain.report.figures import _told
from kbtrain.svg import new_figure


def saving(saved: float, accuracy: float) -> Saving:
    return Saving(
        "probe_benefit", 0.02, 0.5, 100, 200, saved, None, accuracy=accuracy, saved=Delta(saved, 0.0, 1.0),
        change=Delta(0.029, -0.02, 0.08), over_random=Delta(0.1, 0.05, 0.15), as_all_rag=0.2, within=0.1,
    )  # fmt: skip


@pytest.mark.parametrize("saved", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("low", "accuracy", "above"), [(30, 0.46, True), (40, 0.99, False), (96, 0.985, True)])
def test_the_label_stands_inside_the_figure_beside_its_dot(
    saved: float, low: float, accuracy: float, above: bool
) -> None:
    _, axes = new_figure(11.2, 4.9)
    axes.set_xlim(0, 100)
    axes.set_ylim(low, low + 4 if low > 90 else 100 if accuracy > 0.9 else 55)
    _told(axes, saving(saved, accuracy), "#0072b2", narrow=False)
    (label,) = axes.texts
    assert label.get_text() == f"probe benefit\nsaves {100 * saved:.1f} % of the searches\n+2.9 points"
    (x, y), (bottom, top) = label.get_position(), axes.get_ylim()
    assert 20 < x < 80 and bottom < y < top <= 101
    assert bool(y > 100 * accuracy) is above
