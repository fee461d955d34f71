"""Importing kbtrain, its records, prompts and configs stays light: nothing that needs torch is loaded."""

import json
import subprocess
import sys

import pytest

import kbtrain

HEAVY = set("torch transformers peft accelerate sklearn matplotlib datasets numba pandas pyarrow".split())
EXTRA = {"aiohttp", "prometheus_client", "starlette", "uvicorn"}  # serve
LIGHT = (
    "records, kbtrain.errors, kbtrain.io.jsonl, kbtrain.config, kbtrain.prompts.kbm, kbtrain.io.provenance, "
    "kbtrain.answers.grading, kbtrain.models.embedded, kbtrain.cli, kbtrain.gates.registry"
)


def loaded_by(statement):
    """Top-level packages in a fresh interpreter after ``statement``."""
    code = f"{statement}\nimport sys, json\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import kbtrain", HEAVY | {"numpy", "pydantic", "yaml"}),
        (f"import kbtrain.{LIGHT}", HEAVY),
        # `kbtrain serve` then names the extra that is missing, and `kbtrain mcp` does without it
        ("import kbtrain.serve.server, kbtrain.serve.mcp_server", EXTRA | HEAVY),
    ],
)
def test_what_an_import_does_not_load(statement, unwanted):
    assert loaded_by(statement) & unwanted == set()


def test_a_public_name_is_its_module_s():
    for name in set(kbtrain.__all__) - {"__version__"}:
        found = getattr(kbtrain, name)
        assert found.__module__.startswith("kbtrain.") and found.__name__ == name and found.__doc__
