"""What mendeleev does not say about elements: names of families, and which elements are well known."""

from __future__ import annotations

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
