"""The chemical elements of mendeleev, with names of families and a list of well-known elements that it lacks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from atlas.chance import assign, ranks
from atlas.facts import Element

FAMILIES = {  # mendeleev's series number -> name, other names
    2: ("noble gas", "noble gases"),
    3: ("alkali metal", "alkali metals"),
    4: ("alkaline earth metal", "alkaline earth metals", "alkaline earth"),
    6: ("halogen", "halogens"),
    8: ("transition metal", "transition metals"),
    9: ("lanthanide", "lanthanides", "lanthanoid", "rare earth"),
    10: ("actinide", "actinides", "actinoid"),
}
# placed in different families by different sources
NO_FAMILY = {"H", "La", "Ac", "Lu", "Lr", "Zn", "Cd", "Hg", "Sc", "Y", "At", "Og", "Ts", "Cn", "Nh", "Fl", "Mc", "Lv"}
COMMON_ELEMENTS = (
    "O Au H Fe C Ag N He Cu Na Pb Al Cl Ca Zn K Ni Sn Hg U Si S Mg P I Pt Ti Ne Li Ar F Cr Ra Pu B Co As Br Mn W Kr Xe "
    "Rn Be Cs Ba Sb Bi Cd Ga Ge Se Sr V Zr Pd Ir Th Po Ta Mo Rb Os"
).split()

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
