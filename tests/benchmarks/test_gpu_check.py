"""benchmarks/gpu_check.py runs whole on the CPU with tiny models; a check that fails hides no other."""

import json
import sys
from pathlib import Path

from support import scripts
from tiny_kbm import make_folder

SCRIPT = "benchmarks/gpu_check.py"
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))


def test_every_check_runs_on_the_cpu_and_what_has_no_meaning_there_says_so(tmp_path):
    out, model = tmp_path / "gpu.json", make_folder(tmp_path / "model")
    done = scripts.run(SCRIPT, "--device", "cpu", "--tiny", "true", "--model", model, "--output", out)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    found = {each["check"]: each for each in json.loads(out.read_text())["checks"]}
    results = {name: each["result"] for name, each in found.items()}
    assert results.pop("train qlora") == "not run" and "not on cpu" in found["train qlora"]["why"]
    assert set(results.values()) == {"passed"} and len(results) == 12
    assert found["scores"]["figures"]["gap_fp32"] == found["train full"]["figures"]["gap_resumed"] == 0
    assert found["greedy fp32"]["figures"]["equal_to_generate"] == "6/6"
    assert json.loads((tmp_path / "gpu.json.meta.json").read_text())["packages"]["torch"]
    assert "12 passed, 0 FAILED, 1 not run" in done.stdout


def test_without_a_gpu_it_says_so_in_one_line(tmp_path):
    done = scripts.run(SCRIPT, "--output", tmp_path / "gpu.json", env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2 and "no NVIDIA GPU is seen" in done.stderr


def test_a_broken_check_is_a_line_and_not_the_end():
    import gpu_check
    from gpu_here import NotHere, Wrong

    def raises(error):
        def check(here):
            raise error

        return check

    assert gpu_check.one(raises(Wrong("p = 0")), None)["why"] == "Wrong: p = 0"
    assert gpu_check.one(raises(RuntimeError("CUDA error\nmore")), None)["result"] == "FAILED"
    assert gpu_check.one(raises(NotHere("not on cpu")), None)["result"] == "not run"
    assert gpu_check.one(lambda here: {"a": 1}, None)["figures"] == {"a": 1}
