"""The chemical elements out of mendeleev."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from kbtrain.questions.atlas_build.element_tables import COMMON_ELEMENTS, FAMILIES, NO_FAMILY
from kbtrain.questions.atlas_build.entities import Element
from kbtrain.questions.atlas_build.splits import assign, ranks

_OTHER_NAMES = {"Al": ("aluminium",), "S": ("sulphur",), "Cs": ("caesium",)}


def elements(rows: Iterable[Any]) -> list[Element]:
    """All elements in mendeleev's table, best known first (common ones by hand, then by atomic number)."""
    by_symbol = {row.symbol: row for row in rows}
    rest = sorted(set(by_symbol) - set(COMMON_ELEMENTS), key=lambda symbol: by_symbol[symbol].atomic_number)
    order = [*COMMON_ELEMENTS, *rest]
    ids = {symbol: f"element:{symbol}" for symbol in order}
    split, rank = assign(list(ids.values())), ranks(list(ids.values()))
    return [
        Element(
            id=ids[symbol],
            names=(by_symbol[symbol].name.lower(), *_OTHER_NAMES.get(symbol, ())),
            popularity=rank[ids[symbol]],
            split=split[ids[symbol]],
            symbol=symbol,
            number=int(by_symbol[symbol].atomic_number),
            period=int(by_symbol[symbol].period),
            group=None if math.isnan(by_symbol[symbol].group_id) else int(by_symbol[symbol].group_id),
            family=() if symbol in NO_FAMILY else FAMILIES.get(int(by_symbol[symbol].series_id), ()),
        )
        for symbol in order
    ]
