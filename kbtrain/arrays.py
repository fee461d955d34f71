"""Names of the array types that the numeric modules share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
States = NDArray[np.float32]
