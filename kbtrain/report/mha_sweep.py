"""Sweep over RAGate-MHA's grid: its settings, and their dev figures as table and figure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kbtrain.gate.card import ClassifierCard
from kbtrain.io.provenance import write_atomically
from kbtrain.show.svg import COLOURS, new_figure, render
from kbtrain.show.text_table import aligned, number
from kbtrain.training.config import ClassifierConfig
from kbtrain.training.recipe import Recipe

_LINES = ("blue", "orange", "green", "red", "purple", "sky")


@dataclass(frozen=True)
class Shape:
    """Layers, heads and embedding size of one network."""

    layers: int
    heads: int
    d_model: int

    @property
    def name(self) -> str:
        """As the paper writes it: h(4)-l(5)-emb(64)."""
        return f"h({self.heads})-l({self.layers})-emb({self.d_model})"

    @property
    def folder(self) -> str:
        """A folder's name."""
        return f"l{self.layers}_h{self.heads}_d{self.d_model}"


@dataclass(frozen=True)
class SweptNetwork:
    """One finished network: its dev figures (they choose), its epoch, and the seconds it took."""

    shape: Shape
    f1: float
    auroc: float
    average_precision: float
    epoch: float
    seconds: float


def grid(layers: Sequence[int], heads: Sequence[int], sizes: Sequence[int]) -> list[Shape]:
    """All combinations, small ones first."""
    shapes = [Shape(*parts) for parts in itertools.product(layers, heads, sizes)]
    return sorted(shapes, key=lambda s: (s.d_model, s.layers, s.heads))


def best(rows: Sequence[SweptNetwork]) -> SweptNetwork:
    """The best dev F1; of equals the smaller network."""
    return min(rows, key=lambda row: (-row.f1, row.shape.d_model, row.shape.layers, row.shape.heads))


def sweep_table(rows: Sequence[SweptNetwork]) -> str:
    """One line a network, the best dev F1 first."""
    ordered = sorted(rows, key=lambda row: -row.f1)
    head = ("network", "dev F1", "dev AUC", "dev AP", "epoch", "seconds")
    cells = [
        [
            row.shape.name,
            *map(number, (row.f1, row.auroc, row.average_precision)),
            f"{row.epoch:g}",
            f"{row.seconds:.0f}",
        ]
        for row in ordered
    ]
    return aligned(head, cells)


def sweep_figure(rows: Sequence[SweptNetwork]) -> str:
    """Dev F1 against the number of layers, one line for each size and number of heads, as an SVG file's text."""
    figure, axes = new_figure(5.4, 3.6)
    kinds = sorted({(row.shape.d_model, row.shape.heads) for row in rows})
    for i, (size, heads) in enumerate(kinds):
        line = sorted((r.shape.layers, r.f1) for r in rows if (r.shape.d_model, r.shape.heads) == (size, heads))
        style = "o-" if heads == 4 else "s--"
        x, y = zip(*line, strict=True)
        axes.plot(x, y, style, color=COLOURS[_LINES[i % 6]], markersize=4, label=f"emb {size}, {heads} heads")
    axes.set_xlabel("layers")
    axes.set_ylabel("F1 on dev")
    axes.legend(fontsize=8, frameon=False, labelcolor=COLOURS["ink"], ncols=2)
    return _with_colours(render(figure, "sweep"))


def _with_colours(svg: str) -> str:
    """On a page its style names the colours; a file must bring them along."""
    names = "".join(f"--{name}:{value};" for name, value in COLOURS.items())
    opening, rest = svg.split(">", 1)
    return f"{opening}><style>svg{{{names}}}</style>{rest}"


def trained(folder: Path, shape: Shape) -> SweptNetwork:
    """The row of a network from its finished folder's card."""
    run = ClassifierCard.read(folder, "ragate_mha").run
    dev = run["dev"]
    return SweptNetwork(shape, dev["f1"], dev["auroc"], dev["average_precision"], run["best_epoch"], run["seconds"])


def write_sweep(output: Path, rows: Sequence[SweptNetwork]) -> None:
    """Write sweep.json, sweep.md and sweep.svg of the networks so far."""
    write_atomically(output / "sweep.json", json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    write_atomically(output / "sweep.md", "```\n" + sweep_table(rows) + "\n```\n")
    write_atomically(output / "sweep.svg", sweep_figure(rows))


def train_sweep(
    recipe: Recipe, config: ClassifierConfig, shapes: Sequence[Shape], train: Callable[[Shape], None]
) -> None:
    """Train all networks, each into its folder in the config's output; the files are written again after each, so that
    a long sweep can be watched."""
    rows = []
    for shape in shapes:
        train(shape)
        rows.append(trained(config.output / shape.folder, shape))
        write_sweep(config.output, rows)
    recipe.show(sweep_table(rows))
    top = best(rows)
    recipe.say(f"{len(rows)} networks; best dev F1 {top.f1:.3f}: {config.output / top.shape.folder}")
