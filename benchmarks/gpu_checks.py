"""The checks of benchmarks/gpu_check.py: sampling, speed, scores, states, uncertainty on a device, and trainings.

Each takes :class:`Here` and gives its figures, or raises: :class:`Wrong` for a promise that does not hold, anything
else for what breaks, :class:`NotHere` for what has no meaning on this machine.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from gpu_here import SCORE_TOLERANCE, Figures, Here, Wrong, largest_gap
from gpu_trainings import Method, mha, training
from peers.hf_generate import padded
from peers.machine import measured, seconds_of
from sampling_limit import Machine, Work, byte_seconds, operation_seconds
from sampling_prompts import Prompts, long_prompts, short_prompts
from training_data import long_and_short

from kbtrain.gates.kbm.gate import KBM
from kbtrain.gates.probe.states import prompt_states
from kbtrain.gates.seakr.engine import SeakrSettings, Uncertainty
from kbtrain.io.provenance import peak_rss_mb
from kbtrain.llm.base import Sampling
from kbtrain.llm.sampler.observer import Observer, PromptRows, Row
from kbtrain.llm.sampler.sampler import BatchSampler
from kbtrain.llm.sampler.shared_prefix import prefix_problem
from kbtrain.models.batching import BatchLimits, batches
from kbtrain.models.load import load_tokenizer
from kbtrain.prompts.kbm import PAPER_KEYS
from kbtrain.records import GREEDY

TOLERANCE = {"fp32": 1e-3, "bf16": 0.5}  # logits by which a greedy token may be under the highest of a plain pass
STATE_TOLERANCE = 1e-3  # of the states' spread, fp32
LEAST_P = 1e-4  # of the chi-square of draws, whose random numbers are the same on every run
LIMITS = BatchLimits(rows=248, prompt_tokens=16384)


class Tokens(Observer):
    """Notes each answer's tokens, by prompt's name and index."""

    def __init__(self) -> None:
        self.noted: dict[tuple[str, int], list[int]] = {}

    def done(self, row: Row) -> None:
        """Note a row's tokens."""
        self.noted[row.prompt.question_id, row.index] = row.tokens


def endless_sampler(model: Any, tokenizer: Any, tokens: int) -> BatchSampler:
    """The sampler as it is, but no token ends an answer before ``tokens``."""
    problem = prefix_problem(model)
    if problem:
        raise Wrong(f"the shared prefix does not hold: {problem}")
    sampler = BatchSampler(model, tokenizer, Sampling(max_new_tokens=tokens, stop=()))
    sampler.stopper.eos = frozenset()
    return sampler


def rows_of(prompts: Sequence[Sequence[int]], indices: Sequence[int]) -> list[PromptRows]:
    """One row for each prompt and index; a prompt's place is its name."""
    return [PromptRows(str(i), "llm", tuple(ids), tuple(indices)) for i, ids in enumerate(prompts)]


def greedy(here: Here, dtype: str) -> Figures:
    """Greedy tokens beside the logits of a plain pass over prompt and answer, and beside HF generate."""
    model, tokenizer = here.open(dtype)
    tokens = 4 if here.tiny else 24
    prompts = here.prompts(4, 2, 120 if here.tiny else 1100)
    tokens_of = Tokens()
    endless_sampler(model, tokenizer, tokens).observed(tokens_of).sample(rows_of(prompts, (GREEDY,)))
    below, equal = 0.0, 0
    for i, ids in enumerate(prompts):
        answer = tokens_of.noted[str(i), GREEDY]
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
    tokens_of = Tokens()
    endless_sampler(model, tokenizer, 1).observed(tokens_of).sample(rows_of([ids], range(n)))
    with torch.inference_mode():
        shares = model(input_ids=torch.tensor([ids], device=model.device)).logits[0, -1].double().softmax(-1).cpu()
    order = shares.argsort(descending=True)
    # bins of tokens of like probability, each expected 20 times or more
    bins = torch.empty_like(order)
    bins[order] = (shares[order].cumsum(0) * (n / 20)).clamp(max=n / 20 - 1e-6).floor().long()
    _, dense = bins.unique(return_inverse=True)
    expected = torch.zeros(int(dense.max()) + 1, dtype=torch.double).index_add_(0, dense, shares) * n
    tokens = torch.tensor([tokens_of.noted["0", i][0] for i in range(n)])
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
    sampler = endless_sampler(model, tokenizer, tokens)

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
