"""Importing kbtrain, its records, prompts and configs stays light: nothing that needs torch is loaded."""

import json
import subprocess
import sys

import pytest

import kbtrain
from kbtrain.runtime.scripts import find

HEAVY = {
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "sklearn",
    "matplotlib",
    "datasets",
    "numba",
    "pandas",
    "pyarrow",
}
LIGHT = (
    "records",
    "errors",
    "io.jsonl",
    "config",
    "prompts.kbm",
    "io.provenance",
    "answers.grading",
    "models.embedded",
    "cli",
    "gates.registry",
)


def loaded_by(statement: str) -> set[str]:
    """Top-level packages in a fresh interpreter after ``statement``."""
    code = f"{statement}\nimport sys, json\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_importing_kbtrain_loads_nothing_heavy_not_even_pydantic():
    assert loaded_by("import kbtrain") & (HEAVY | {"numpy", "pydantic", "yaml"}) == set()


@pytest.mark.parametrize("module", LIGHT)
def test_light_module_loads_nothing_heavy(module):
    assert loaded_by(f"import kbtrain.{module}") & HEAVY == set()


@pytest.mark.parametrize("module", ["server", "mcp_server"])
def test_serving_commands_load_without_the_extra_serve(module):
    """`kbtrain serve` then names the extra that is missing, and `kbtrain mcp` does without it."""
    extra = {"aiohttp", "prometheus_client", "starlette", "uvicorn"}
    assert loaded_by(f"import kbtrain.serve.{module}") & extra == set()


MODULES_OF_HELP = """import contextlib, io, runpy, sys
sys.argv = [sys.argv[1], "--help"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    runpy.run_path(sys.argv[0], run_name="__main__")
print(sum(name.split(".")[0] == "kbtrain" for name in sys.modules))"""


@pytest.mark.parametrize("stage", ["collect", "retrieve", "sample", "label", "build", "train_features"])
def test_a_stage_loads_what_it_needs_and_no_evaluation(stage):
    script = find(stage, "stages", "recipes", what="script")
    done = subprocess.run([sys.executable, "-c", MODULES_OF_HELP, script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 70


@pytest.mark.parametrize("name", [name for name in kbtrain.__all__ if name != "__version__"])
def test_a_public_name_is_its_module_s(name):
    found = getattr(kbtrain, name)
    assert found.__module__.startswith("kbtrain.") and found.__name__ == name and found.__doc__
