"""Imports that the stages of a chain share: loaded once, by the process that stages are forked from.

Importing it is what loads them; :mod:`kbtrain.runtime.stage_process` names it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging

from kbtrain.runtime.cores import share_cores

MODULES = (
    "torch",
    "transformers.trainer",
    "transformers.models.llama.modeling_llama",
    "sklearn.ensemble",
    "sklearn.linear_model",
    "matplotlib.figure",
    "kbtrain.gates.handles",
    "kbtrain.gates.kbm.train",
    "kbtrain.gates.probe.train",
    "kbtrain.llm.transformers_llm",
)

share_cores()
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # of kernels that it misses, used or not
for name in MODULES:
    with contextlib.suppress(ImportError):  # the stage that needs it names what is missing
        importlib.import_module(name)
gc.freeze()  # no stage searches what was imported for garbage
