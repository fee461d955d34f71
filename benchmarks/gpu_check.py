"""What a GPU would show: sampling, training, scores, states and uncertainty on one NVIDIA GPU, in at most 8 minutes.

No network is needed. Each check runs whatever became of the others; exit status 1 if one failed. One table, one JSON.
With --device cpu --tiny a random model of two layers shows that the program runs.

Examples:
  python benchmarks/gpu_check.py
  python benchmarks/gpu_check.py --only "[greedy bf16, speed 1100]"
  python benchmarks/gpu_check.py --model FOLDER --random true  # with the sizes and the tokenizer of FOLDER alone
  python benchmarks/gpu_check.py --device cpu --tiny true
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from tqdm import tqdm

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, did_you_mean
from kbtrain.show import aligned

if TYPE_CHECKING:
    from gpu_here import Figures, Here

sys.path.append(str(Path(__file__).resolve().parent / "peers"))  # where peers find each other


class GpuCheckConfig(Config):
    device: Literal["cuda", "cpu"] = Field("cuda", description="cuda, or cpu to see that the program runs")
    model: str = Field("smollm2-135m-instruct", description="embedded name or local folder")
    tiny: bool = Field(False, description="a random model of two layers with this model's tokenizer, few questions")
    random: bool = Field(False, description="a model of this one's sizes with random weights; its own are not read")
    only: tuple[str, ...] | None = Field(None, description="names of checks; null: all")
    limit_seconds: float = Field(480.0, gt=0, description="no check begins after so many seconds")
    output: Path = Field(Path("runs/bench/gpu_check.json"), description="where the figures go")


def main(config: GpuCheckConfig) -> None:
    import torch
    from gpu_checks import CHECKS
    from gpu_here import Here

    from kbtrain.io.provenance import write_result

    for name in config.only or ():
        if name not in CHECKS:
            raise UserError(f"key 'only': unknown check '{name}'; {did_you_mean(name, CHECKS)}")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise UserError("no NVIDIA GPU is seen by torch here; --device cpu --tiny true shows that the program runs")
    torch.backends.cuda.matmul.allow_tf32 = False
    started, found = time.monotonic(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        here = Here(config.device, model_folder(config, Path(folder)), Path(folder), config.tiny)
        for name in tqdm([name for name in CHECKS if name in (config.only or CHECKS)], unit=" checks", file=sys.stderr):
            late = time.monotonic() - started > config.limit_seconds
            found.append({"check": name, **(LATE if late else one(CHECKS[name], here))})
    about = {"gpu": gpu(config.device), "checks": found}
    config.output.parent.mkdir(parents=True, exist_ok=True)
    write_result(config.output, about, stage="gpu_check", config=config, inputs=(), started=started)
    rows = [row(each) for each in found]
    widest = max(len(cells[-1]) for cells in rows)  # padded on the right: these stand on the left
    print(aligned(("check", "result", "s", "figures".ljust(widest)), [[*r[:-1], r[-1].ljust(widest)] for r in rows]))
    count = {word: sum(each["result"] == word for each in found) for word in ("passed", "FAILED", "not run")}
    said = ", ".join(f"{n} {word}" for word, n in count.items())
    print(f"{about['gpu']}: {said}; {time.monotonic() - started:.0f} s -> {config.output}")
    if count["FAILED"]:
        sys.exit(1)


LATE = {"result": "FAILED", "seconds": 0.0, "why": "the time was over before it began", "figures": {}}


def one(check: Callable[[Here], Figures], here: Here) -> dict[str, Any]:
    """Result, seconds and figures of a check; whatever it raises is its own."""
    import torch
    from gpu_here import NotHere

    started, result, why, figures = time.perf_counter(), "passed", "", dict[str, Any]()
    try:
        figures = check(here)
    except NotHere as error:
        result, why = "not run", str(error)
    except Exception as error:  # noqa: BLE001 (a check that breaks must not hide the others)
        traceback.print_exc()
        result, why = "FAILED", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return {"result": result, "seconds": time.perf_counter() - started, "why": why, "figures": figures}


def model_folder(config: GpuCheckConfig, work: Path) -> str:
    """The model's folder; tiny or random: one of its class with random parameters, and its tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from kbtrain.models.load import load_tokenizer, resolve

    where = resolve(config.model)
    if not (config.tiny or config.random):
        return where
    shape = AutoConfig.from_pretrained(where)
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    small |= {"num_key_value_heads": 2, "head_dim": 8}
    for key, value in small.items() if config.tiny else ():
        setattr(shape, key, value)
    torch.manual_seed(0)
    folder = work / "model"
    model: Any = AutoModelForCausalLM.from_config(shape, dtype=torch.float32)
    if config.random:  # logits as far apart as a trained model's, or each token is about as probable as any
        model.get_output_embeddings().weight.data *= 6
    model.save_pretrained(folder)
    load_tokenizer(config.model).save_pretrained(folder)
    return str(folder)


def gpu(device: str) -> str:
    """Name of the device, its memory and CUDA's version."""
    import torch

    if device == "cpu":
        return "cpu"
    properties = torch.cuda.get_device_properties(0)
    return f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"


def row(found: dict[str, Any]) -> list[str]:
    """A line of the table."""
    figures = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in found["figures"].items())
    return [found["check"], found["result"], f"{found['seconds']:.1f}", figures or found["why"]]


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # the trainers would spread over several
    run_script(main, GpuCheckConfig, __doc__)
