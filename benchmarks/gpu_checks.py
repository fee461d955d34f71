"""The checks of benchmarks/gpu_check.py: sampling, speed, training, scores, states, uncertainty on a device.

Each takes :class:`Here` and gives its figures, or raises: :class:`Wrong` for a promise that does not hold, anything
else for what breaks, :class:`NotHere` for what has no meaning on this machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib.util
import io
import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal
from unittest import mock

import torch
from peers.hf_generate import padded
from peers.machine import measured, seconds_of
from sampling_limit import Machine, Work, byte_seconds, operation_seconds
from sampling_prompts import Prompts, long_prompts, short_prompts
from training_data import long_and_short

from kbtrain import jsonl
from kbtrain.gates.kbm.gate import KBM
from kbtrain.gates.probe.states import prompt_states
from kbtrain.gates.ragate.mha import RagateMHA
from kbtrain.gates.seakr.engine import SeakrSettings, Uncertainty
from kbtrain.llm.base import Sampling
from kbtrain.llm.sampler.sampler import BatchSampler, PromptRows, Row
from kbtrain.llm.sampler.shared_prefix_check import prefix_problem
from kbtrain.models.batching import BatchLimits, batches
from kbtrain.models.load import load_model, load_tokenizer
from kbtrain.prompts.kbm import PAPER_KEYS
from kbtrain.provenance import peak_rss_mb
from kbtrain.records import GREEDY
from kbtrain.scripts import find

Figures = dict[str, float | int | str]
Method = Literal["full", "lora", "qlora"]

TOLERANCE = {"fp32": 1e-3, "bf16": 0.5}  # logits by which a greedy token may be under the highest of a plain pass
SCORE_TOLERANCE = {"fp32": 1e-3, "bf16": 0.1}  # a probability, from the CPU's in fp32
STATE_TOLERANCE = 1e-3  # of the states' spread, fp32
LOSS_TOLERANCE = 0.02  # of a resumed training's loss; a GPU's sums have no fixed order
LEAST_P = 1e-4  # of the chi-square of draws, whose random numbers are the same on every run
LIMITS = BatchLimits(rows=248, prompt_tokens=16384)


class Wrong(Exception):
    """A promise does not hold."""


class NotHere(Exception):
    """This check has no meaning on this machine."""


@dataclass(frozen=True)
class Here:
    """Device, folder of the model, folder for what is written. ``tiny``: few questions and tokens."""

    device: str
    model: str
    work: Path
    tiny: bool

    @property
    def steps(self) -> int:
        """Of a training; a checkpoint is written after half of them."""
        return 4 if self.tiny else 20

    def open(self, dtype: str, device: str | None = None) -> tuple[Any, Any]:
        """Model and tokenizer on the device (or another)."""
        return load_model(self.model, dtype, device or self.device)

    def prompts(self, short: int, long: int, length: int) -> list[list[int]]:
        """Token ids of the atlas' questions, without and with evidence."""
        tokenizer = load_tokenizer(self.model)
        evidence = long_prompts(tokenizer, long, length).ids if long else []
        return [*short_prompts(tokenizer, short).ids, *evidence]


class TokenSampler(BatchSampler):
    """The sampler as it is, which also notes each answer's tokens. ``ends`` False: no token ends an answer."""

    def __init__(self, model: Any, tokenizer: Any, tokens: int, ends: bool = True) -> None:
        problem = prefix_problem(model, 2048 + tokens)
        if problem:
            raise Wrong(f"the shared prefix does not hold: {problem}")
        super().__init__(model, tokenizer, Sampling(max_new_tokens=tokens, stop=()))
        self.noted: dict[tuple[str, int], list[int]] = {}
        if not ends:
            self.stopper.eos = frozenset()

    def after_draw(self, rows: Sequence[Row], logits: torch.Tensor, drawn: Any) -> None:
        """Note the rows' tokens."""
        self.noted |= {(row.question_id, row.index): row.tokens for row in rows}


def rows_of(prompts: Sequence[Sequence[int]], indices: Sequence[int]) -> list[PromptRows]:
    """One row for each prompt and index; a prompt's place is its name."""
    return [PromptRows(str(i), "llm", tuple(ids), tuple(indices)) for i, ids in enumerate(prompts)]


def greedy(here: Here, dtype: str) -> Figures:
    """Greedy tokens beside the logits of a plain pass over prompt and answer, and beside HF generate."""
    model, tokenizer = here.open(dtype)
    tokens = 4 if here.tiny else 24
    prompts = here.prompts(4, 2, 120 if here.tiny else 1100)
    sampler = TokenSampler(model, tokenizer, tokens, ends=False)
    sampler.sample(rows_of(prompts, (GREEDY,)))
    below, equal = 0.0, 0
    for i, ids in enumerate(prompts):
        answer = sampler.noted[str(i), GREEDY]
        with torch.inference_mode():
            whole = torch.tensor([[*ids, *answer]], device=model.device)
            logits = model(input_ids=whole, logits_to_keep=len(answer) + 1).logits[0, :-1].float()
        chosen = logits.gather(1, torch.tensor(answer, device=model.device)[:, None])[:, 0]
        below = max(below, float((logits.amax(1) - chosen).max()))
        with without_ends(model):
            found = generate(model, [ids], 1, tokens, do_sample=False)
        equal += found[0, len(ids) :].tolist() == answer
    if not below <= TOLERANCE[dtype]:
        raise Wrong(f"a greedy token's logit is {below:.4f} under the highest; tolerance {TOLERANCE[dtype]}")
    return {"logit_below_highest": below, "tolerance": TOLERANCE[dtype], "equal_to_generate": f"{equal}/{len(prompts)}"}


def draws(here: Here) -> Figures:
    """Chi-square of first tokens against the probabilities of a plain pass."""
    from scipy.stats import chisquare

    model, tokenizer = here.open("fp32")
    n, (ids,) = 2_000 if here.tiny else 20_000, here.prompts(1, 0, 0)
    sampler = TokenSampler(model, tokenizer, 1, ends=False)
    sampler.sample(rows_of([ids], range(n)))
    with torch.inference_mode():
        shares = model(input_ids=torch.tensor([ids], device=model.device)).logits[0, -1].double().softmax(-1).cpu()
    order = shares.argsort(descending=True)
    # bins of tokens of like probability, each expected 20 times or more
    bins = torch.empty_like(order)
    bins[order] = (shares[order].cumsum(0) * (n / 20)).clamp(max=n / 20 - 1e-6).floor().long()
    _, dense = bins.unique(return_inverse=True)
    expected = torch.zeros(int(dense.max()) + 1, dtype=torch.double).index_add_(0, dense, shares) * n
    tokens = torch.tensor([sampler.noted["0", i][0] for i in range(n)])
    seen = torch.bincount(dense[tokens], minlength=len(expected)).double()
    p = float(chisquare(seen.numpy(), (expected * (n / expected.sum())).numpy()).pvalue)
    if not p > LEAST_P:
        raise Wrong(f"draws do not follow the model's probabilities: p = {p:.2g}")
    return {"draws": n, "bins": len(expected), "p": p}


def throughput(here: Here, length: int) -> Figures:
    """Answers a second in 16 bits (as the sampler chooses them), beside HF generate and the device's limits."""
    model, tokenizer = here.open("bf16" if here.device == "cuda" else "fp32")
    return speed(here, model, tokenizer, length)


def qwen2(here: Here) -> Figures:
    """The same for a random model of Qwen2's class with 1.5 billion parameters (tiny: two layers)."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    sizes = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12}
    if here.tiny:
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    vocabulary = 50_000 if here.tiny else 151_936
    config = Qwen2Config(**sizes, num_key_value_heads=2, vocab_size=vocabulary, tie_word_embeddings=True)
    torch.manual_seed(0)
    with torch.device(here.device):
        dtype = torch.bfloat16 if here.device == "cuda" else torch.float32
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    found = speed(here, model, load_tokenizer(here.model), 60 if here.tiny else 1100)
    return {"parameters": sum(p.numel() for p in model.parameters()), **found}


def speed(here: Here, model: Any, tokenizer: Any, length: int) -> Figures:
    """Questions a second, ours and HF generate's, shares of the limits, and the peak of memory."""
    count, n, tokens = (2, 3, 3) if here.tiny else (16, 30, 24)
    if here.tiny:
        length = min(length, 120)
    made: Prompts = short_prompts(tokenizer, count) if length < 100 else long_prompts(tokenizer, count, length)
    rows, device = rows_of(made.ids, range(n)), here.device
    sampler = TokenSampler(model, tokenizer, tokens, ends=False)

    def ours() -> None:
        for batch in batches(rows, LIMITS):
            sampler.sample(batch)

    def theirs() -> None:
        with without_ends(model):
            generate(model, [made.ids[0]], n, tokens, do_sample=True, top_k=0, top_p=1.0, temperature=1.0)

    ours()  # warm-up
    theirs()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = min(seconds_of(ours, device) for _ in range(1 if here.tiny else 3)) / count
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else peak_rss_mb()
    of_generate = min(seconds_of(theirs, device) for _ in range(1 if here.tiny else 3))
    n_batches = sum(1 for _ in batches(rows, LIMITS))
    together = math.ceil(count / n_batches)
    measure = [together * n, min(2048, together * max(map(len, made.ids)))]
    machine = Machine.of(measured(model, measure, 2**24 if here.tiny else 2**30))
    work = Work([len(ids) for ids in made.ids], n, float(tokens), tokens, n_batches)
    computing, reading = sum(operation_seconds(machine, work).values()) / count, byte_seconds(machine, work) / count
    return {
        "questions_a_second": 1 / seconds, "answers_a_second": n / seconds, "times_generate": of_generate / seconds,
        "share_of_flop_limit": computing / seconds, "share_of_bandwidth_limit": reading / seconds,
        "tflops": max(machine.body_rates) / 1e12, "gb_a_second": machine.bandwidth / 1e9, "peak_mb": peak,
    }  # fmt: skip


def scores(here: Here) -> Figures:
    """The KBM's probabilities (untrained, on the model's own weights) beside the CPU's in fp32."""
    examples = long_and_short(3 if here.tiny else 16, 60 if here.tiny else 600)

    def of(dtype: str, device: str) -> list[float]:
        model, tokenizer = here.open(dtype, device)
        found = KBM(model, tokenizer, PAPER_KEYS, 1580).probabilities(examples)
        return [p for key in PAPER_KEYS for p in found[key]]

    reference, figures = of("fp32", "cpu"), Figures()
    for dtype, tolerance in SCORE_TOLERANCE.items():
        gap = largest_gap(of(dtype, here.device), reference)
        figures |= {f"gap_{dtype}": gap, f"tolerance_{dtype}": tolerance}
        if not gap <= tolerance:
            raise Wrong(f"scores in {dtype} differ from the CPU's by {gap:.4f}; tolerance {tolerance}")
    return figures


def states(here: Here) -> Figures:
    """A probe's states beside the CPU's, and prompts read a second."""
    prompts = here.prompts(4, 2, 120) if here.tiny else here.prompts(64, 8, 1100)
    model, _ = here.open("fp32")
    found = prompt_states(model, prompts)
    seconds = seconds_of(lambda: prompt_states(model, prompts), here.device)
    some = [0, len(prompts) - 1]
    reference = prompt_states(here.open("fp32", "cpu")[0], [prompts[i] for i in some])
    gap = float(abs(found[some] - reference).max() / reference.std())
    if not gap <= STATE_TOLERANCE:
        raise Wrong(f"states differ from the CPU's by {gap:.2g} of their spread; tolerance {STATE_TOLERANCE}")
    return {"gap_of_spread": gap, "tolerance": STATE_TOLERANCE, "prompts_a_second": len(prompts) / seconds}


def uncertainty(here: Here) -> Figures:
    """SeaKR's uncertainty beside the CPU's: the median difference, since a draw at an edge may fall otherwise."""
    k, tokens = (4, 3) if here.tiny else (20, 24)
    prompts = [(str(i), ids) for i, ids in enumerate(here.prompts(4 if here.tiny else 8, 0, 0))]

    def of(device: str) -> tuple[list[float], float]:
        engine = Uncertainty(*here.open("fp32", device), SeakrSettings(k=k, max_new_tokens=tokens), LIMITS)
        found = [thought.uncertainty for thought in engine.think(prompts)]
        return found, seconds_of(lambda: engine.think(prompts), device)

    (found, seconds), (reference, _) = of(here.device), of("cpu")
    gap = statistics.median(abs(a - b) for a, b in zip(found, reference, strict=True))
    if not (gap <= 1e-2 and all(map(math.isfinite, found))):
        raise Wrong(f"uncertainties differ from the CPU's by {gap:.3g} (median); tolerance 0.01")
    return {"median_gap": gap, "tolerance": 1e-2, "questions_a_second": len(found) / seconds}


def training(here: Here, method: Method) -> Figures:
    """20 steps (tiny: 4) of the KBM's recipe; the same broken off behind its checkpoint and resumed: equal losses."""
    if method == "qlora" and here.device == "cpu":
        raise NotHere("not on cpu: trainings beside 4-bit weights there are in tests/recipes")
    if method == "qlora" and importlib.util.find_spec("bitsandbytes") is None:
        raise NotHere('bitsandbytes is not installed: pip install "kbtrain[train]"')
    recipe = recipe_module("train_kbm")
    (train, dev), half = examples_files(here), here.steps // 2
    keys: dict[str, Any] = {
        "model": here.model, "train": train, "dev": dev, "method": method, "epochs": 1,
        "device_batch_size": rows_a_step(here), "save_steps": half, "device": here.device,
        "dtype": "bf16" if here.device == "cuda" else "fp32",
        "keys": PAPER_KEYS, "select": "last", "merge_adapter": False,
    }  # fmt: skip
    if here.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    whole, resumed = (here.work / f"{method}-{name}" for name in ("whole", "resumed"))
    seconds = seconds_of(lambda: train_once(recipe, recipe.TrainKBMConfig(**keys, output=whole)), here.device)
    peak = torch.cuda.max_memory_allocated() / 2**20 if here.device == "cuda" else peak_rss_mb()
    again = recipe.TrainKBMConfig(**keys, output=resumed)
    with broken_off_behind(half), contextlib.suppress(BrokenOff):
        train_once(recipe, again)
    if not (resumed / "checkpoints" / f"checkpoint-{half}").is_dir():
        raise Wrong(f"no checkpoint of step {half}")
    train_once(recipe, again)
    first, second = (losses(folder) for folder in (whole, resumed))
    if not len(first) == len(second) == here.steps:
        raise Wrong(f"{len(first)} and {len(second)} steps, expected {here.steps}")
    gap = largest_gap([a / b for a, b in zip(first, second, strict=True)], [1.0] * here.steps)
    if not gap <= LOSS_TOLERANCE:
        raise Wrong(f"a resumed training's loss differs by {gap:.2%}; tolerance {LOSS_TOLERANCE:.0%}")
    return {
        "steps": here.steps, "seconds": seconds, "first_loss": first[0], "last_loss": first[-1], "gap_resumed": gap,
        "tolerance": LOSS_TOLERANCE, "peak_mb": peak,
    }  # fmt: skip


def mha(here: Here) -> Figures:
    """RAGate-MHA: as many steps of its recipe, then its scores beside the CPU's."""
    recipe, (train, dev) = recipe_module("train_ragate_mha"), examples_files(here)
    config = recipe.TrainRagateMHAConfig(
        train=train, dev=dev, output=here.work / "mha", key="mastery", inputs="contx", layers=2, heads=4, d_model=64,
        vocabulary=300 if here.tiny else 2000, max_length=128, epochs=1, device_batch_size=rows_a_step(here),
        learning_rate=1e-3, dtype="fp32", device=here.device, select="last",
    )  # fmt: skip
    seconds = seconds_of(lambda: train_once(recipe, config), here.device)
    examples = long_and_short(6, 60)
    found, reference = (
        RagateMHA.load(here.work / "mha", "fp32", device).score_examples(examples) for device in (here.device, "cpu")
    )
    gap = largest_gap(found, reference)
    if not gap <= SCORE_TOLERANCE["fp32"]:
        raise Wrong(f"scores differ from the CPU's by {gap:.4f}; tolerance {SCORE_TOLERANCE['fp32']}")
    return {"steps": here.steps, "seconds": seconds, "gap": gap, "tolerance": SCORE_TOLERANCE["fp32"]}


def largest_gap(found: Sequence[float], reference: Sequence[float]) -> float:
    """Largest difference; NaN if any is."""
    gaps = [abs(a - b) for a, b in zip(found, reference, strict=True)]
    return math.nan if any(map(math.isnan, gaps)) else max(gaps)


def generate(model: Any, prompts: list[list[int]], n: int, tokens: int, **how: Any) -> torch.Tensor:
    """HF generate's ids, (prompts x n, length), the prompts included."""
    inputs = {name: values.to(model.device) for name, values in padded(prompts).items()}
    made: torch.Tensor = model.generate(
        **inputs, num_return_sequences=n, max_new_tokens=tokens, pad_token_id=0, **how
    )  # fmt: skip
    return made


@contextlib.contextmanager
def without_ends(model: Any) -> Iterator[None]:
    """Within it, ``generate`` knows no end token: all answers have as many tokens as may be."""
    before = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = None
    try:
        yield
    finally:
        model.generation_config.eos_token_id = before


def examples_files(here: Here) -> tuple[Path, Path]:
    """Training and dev examples in files: as many rows as :func:`rows_a_step` takes, both classes in each."""
    rows = rows_a_step(here) * here.steps
    made = sorted(long_and_short(rows + 4, 30 if here.tiny else 300), key=lambda example: bool(example.mastery))
    dev = [dataclasses.replace(example, split="dev") for example in (*made[:2], *made[-2:])]
    paths = here.work / "train.jsonl", here.work / "dev.jsonl"
    for path, part in zip(paths, (made[2:-2], dev), strict=True):
        jsonl.write(path, part)
    return paths


def rows_a_step(here: Here) -> int:
    """Examples in a step of a training."""
    return 1 if here.tiny else 2


def recipe_module(name: str) -> ModuleType:
    """A recipe's script as a module."""
    spec = importlib.util.spec_from_file_location(name, find(name, "recipes", what="recipe"))
    if spec is None or spec.loader is None:
        raise FileNotFoundError(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic looks there for the types of a config's fields
    spec.loader.exec_module(module)
    return module


def train_once(recipe: ModuleType, config: Any) -> None:
    """A recipe's main in this process; its output is the recipe's, not ours."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    kinds: tuple[Any, ...] = (AcceleratorState, GradientState, PartialState)
    for kind in kinds:  # of the whole process, left by the training before
        kind._reset_state()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            recipe.main(config)
    finally:
        gc.collect()


class BrokenOff(BaseException):
    """A training that is ended in its middle, as by a signal: nothing in between catches it."""


@contextlib.contextmanager
def broken_off_behind(step: int) -> Iterator[None]:
    """Within it, a training ends with :class:`BrokenOff` at the first step behind ``step``."""
    from transformers.trainer_callback import DefaultFlowCallback

    before: Callable[..., Any] = DefaultFlowCallback.on_step_end

    def on_step_end(self: Any, args: Any, state: Any, control: Any, **more: Any) -> Any:
        if state.global_step > step:
            raise BrokenOff
        return before(self, args, state, control, **more)

    with mock.patch.object(DefaultFlowCallback, "on_step_end", on_step_end):
        yield


def losses(folder: Path) -> list[float]:
    """The logged loss of each step."""
    history = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


def of_methods() -> Iterator[tuple[str, Callable[[Here], Figures]]]:
    """Trainings by name."""
    methods: tuple[Method, ...] = ("full", "lora", "qlora")
    for method in methods:
        yield f"train {method}", lambda here, method=method: training(here, method)


CHECKS: dict[str, Callable[[Here], Figures]] = {
    "greedy fp32": lambda here: greedy(here, "fp32"),
    "greedy bf16": lambda here: greedy(here, "bf16"),
    "draws": draws,
    "scores": scores,
    "states": states,
    "uncertainty": uncertainty,
    **dict(itertools.chain(of_methods())),
    "ragate-mha": mha,
    "speed 60": lambda here: throughput(here, 60),
    "speed 1100": lambda here: throughput(here, 1100),
    "qwen2 1.5b": qwen2,
}
