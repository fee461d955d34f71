"""Colours of lines, distinct on white and on dark grounds for any number of lines; a gate has one everywhere."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from itertools import product
from typing import get_args

import numpy as np

from kbtrain.arrays import Floats
from kbtrain.records import Target
from kbtrain.show.svg import COLOURS

FIRST = tuple(COLOURS[name] for name in ("blue", "red", "green", "purple", "orange"))
GROUNDS = ("#ffffff", "#16171a")  # of style.css
CONTRAST = 2.5  # at least, to both grounds; the page has own shades of the first five for each
_STEP = 17  # 16 steps a channel
_KINDS = ("stack", "draft_probe", "probe", "features", "kbm", "encoder_probe")  # the gates of most figures
Dash = str | tuple[int, tuple[int, int]]
_DASHES: dict[str, Dash] = {"benefit": "-", "mastery": "--", "certainty": "-.", "change": (0, (1, 1))}


def gate_looks(gates: Iterable[str]) -> dict[str, tuple[str, Dash]]:
    """Colour and dash of each gate: the colour is the kind's, in every figure, and the dash the label's."""
    parts = {}
    for gate in gates:
        kind, _, key = gate.rpartition("_")
        parts[gate] = (kind, key) if kind and key in get_args(Target) else (gate, "")
    kinds = [*_KINDS, *dict.fromkeys(kind for kind, _ in parts.values() if kind not in _KINDS)]
    colours = dict(zip(kinds, distinct(len(kinds)), strict=True))
    return {gate: (colours[kind], _DASHES.get(key, "-")) for gate, (kind, key) in parts.items()}


@functools.cache
def distinct(n: int) -> tuple[str, ...]:
    """``n`` colours: :data:`FIRST`, then always the one farthest in Oklab from grey and from all before it."""
    values = range(0, 256, _STEP)
    rgb = np.array(list(product(values, values, values)), dtype=np.float64) / 255
    rgb = rgb[np.all([_contrast(rgb, _rgb(ground)) >= CONTRAST for ground in GROUNDS], axis=0)]
    lab = oklab(rgb)
    colours = list(FIRST)
    used = [oklab(_rgb(colour)) for colour in (*colours, COLOURS["grey"], COLOURS["ink"])]
    nearest = np.min([distance(lab, colour) for colour in used], axis=0)
    while len(colours) < n:
        place = int(np.argmax(nearest))
        colours.append("#" + "".join(f"{round(255 * v):02x}" for v in rgb[place]))
        nearest = np.minimum(nearest, distance(lab, lab[place]))
    return tuple(colours[:n])


def oklab(rgb: Floats) -> Floats:
    """Ottosson's Oklab (2020) of sRGB colours in [0, 1], shape (..., 3)."""
    to_cones = np.array([[0.4122214708, 0.5363325363, 0.0514459929],
                         [0.2119034982, 0.6806995451, 0.1073969566],
                         [0.0883024619, 0.2817188376, 0.6299787005]])  # fmt: skip
    to_lab = np.array([[0.2104542553, 0.7936177850, -0.0040720468],
                       [1.9779984951, -2.4285922050, 0.4505937099],
                       [0.0259040371, 0.7827717662, -0.8086757660]])  # fmt: skip
    lab: Floats = np.cbrt(_linear(rgb) @ to_cones.T) @ to_lab.T
    return lab


def distance(first: Floats, second: Floats) -> Floats:
    """Euclidean, in Oklab."""
    return np.asarray(np.linalg.norm(first - second, axis=-1))


def contrast(first: str, second: str) -> float:
    """WCAG's contrast ratio of two colours, 1 to 21."""
    return float(_contrast(_rgb(first), _rgb(second)))


def _contrast(colour: Floats, ground: Floats) -> Floats:
    weights = np.array([0.2126, 0.7152, 0.0722])
    first, second = _linear(colour) @ weights + 0.05, _linear(ground) @ weights + 0.05
    return np.asarray(np.maximum(first, second) / np.minimum(first, second))


def _rgb(colour: str) -> Floats:
    return np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def _linear(rgb: Floats) -> Floats:
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
