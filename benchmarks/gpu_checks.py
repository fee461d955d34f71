"""The checks of benchmarks/gpu_check.py: sampling, speed, scores, states, uncertainty on a device, and trainings.

Each takes :class:`Here` and gives its figures, or raises: :class:`Wrong` for a promise that does not hold, anything
else for what breaks, :class:`NotHere` for what has no meaning on this machine.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from gpu_here import SCORE_TOLERANCE, Figures, Here, Wrong, largest_gap
from gpu_trainings import Method, mha, training
from peers.hf_generate import padded
from peers.machine import bandwidth, facts, measured, seconds_of
from sampling_limit import Machine, Work, byte_seconds, operation_seconds
from sampling_prompts import Prompts, long_prompts, short_prompts
from training_data import long_and_short

from kbtrain.gates.kbm.gate import KBM
from kbtrain.gates.probe.states import prompt_states
from kbtrain.gates.seakr.engine import SeakrSettings, Uncertainty
from kbtrain.io.provenance import peak_rss_mb
from kbtrain.llm.base import Sampling, UniformRow
from kbtrain.llm.sampler.draw import DrawnTokens
from kbtrain.llm.sampler.observer import Observer, PromptRows, Row
from kbtrain.llm.sampler.prefill import prefill
from kbtrain.llm.sampler.sampler import BatchSampler
from kbtrain.llm.sampler.shared_prefix_check import prefix_problem
from kbtrain.llm.sampler.step_graph import Grid, StepGraph
from kbtrain.models.batching import BatchLimits, batches
from kbtrain.models.load import load_tokenizer
from kbtrain.prompts.kbm import PAPER_KEYS
from kbtrain.records import GREEDY

TOLERANCE = {"fp32": 1e-3, "bf16": 0.5}  # logits by which a greedy token may be under the highest of a plain pass
STATE_TOLERANCE = 1e-3  # of the states' spread, fp32
EDGE_TOLERANCE = {"fp32": 1e-3, "bf16": 0.1}  # a probability: how far from a draw's edge two equal models may part
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
    problem = prefix_problem(model, 2048 + tokens)
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


class StepTimes(Observer):
    """Notes when each step's tokens were drawn."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_token(self, rows: Sequence[Row], logits: torch.Tensor, drawn: DrawnTokens) -> None:
        """Note the time."""
        self.times.append(time.perf_counter())

    def median_ms(self) -> float:
        """Of a step, without those that the capture or the prefill belongs to."""
        return 1e3 * statistics.median(b - a for a, b in itertools.pairwise(self.times[2:]))


def decode_step(here: Here) -> Figures:
    """Steps of 248 answers, replayed as a CUDA graph and started from Python: milliseconds, and whether they agree.

    On a CPU the same steps are not captured.
    """
    figures = Figures()
    for dtype, length in [("fp32", 60)] if here.device == "cpu" else [("fp32", 60), ("bf16", 60), ("bf16", 1100)]:
        model, tokenizer = here.open(dtype)
        long = length > 100
        prompts = here.prompts(0 if long else 8, 8 if long else 0, length)
        rows = rows_of(prompts, (GREEDY, *range(2 if here.tiny else 30)))
        sampler, both = endless_sampler(model, tokenizer, 16 if here.tiny else 32), []
        name = f"{dtype}_{length}"
        if here.device == "cuda":  # what cannot be captured is an error here, not a warning
            figures[f"{name}_capture_s"] = seconds_of(functools.partial(capture, model, prompts, rows), "cuda")
        for graphs in (False, True):
            sampler.graphs.problem = None if graphs else "it is measured"
            if here.device == "cpu":
                sampler.graphs.capture = False
            first = seconds_of(lambda: sampler.sample(rows), here.device)  # noqa: B023
            if here.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            tokens, times = Tokens(), StepTimes()
            observed = sampler.observed(tokens, times)
            second = seconds_of(lambda: observed.sample(rows), here.device)  # noqa: B023
            both.append(tokens.noted)
            kind = "graph" if graphs else "python"
            figures |= {f"{name}_{kind}_ms": times.median_ms(), f"{name}_{kind}_s": second}
            figures[f"{name}_{kind}_first_s"] = first
            if here.device == "cuda":
                figures[f"{name}_{kind}_peak_mb"] = torch.cuda.max_memory_allocated() / 2**20
        if sampler.graphs.problem:
            raise Wrong(f"the decode step was not captured: {sampler.graphs.problem}")
        answers = [(tokens, both[1][key], key) for key, tokens in both[0].items()]
        differ = [(a, b, key) for a, b, key in answers if a != b]
        figures[f"{name}_equal"] = f"{len(answers) - len(differ)}/{len(answers)}"
        furthest = max((from_edge(model, sampler, prompts, *each) for each in differ[:32]), default=0.0)
        figures[f"{name}_from_edge"] = furthest
        if not furthest <= EDGE_TOLERANCE[dtype]:
            raise Wrong(f"{name}: {figures[f'{name}_equal']} answers equal; a draw is {furthest:.2g} from its edge")
        if here.device == "cuda":
            figures |= step_shares(model, sampler, prompts, len(rows[0].indices), name, figures)
    return figures


@torch.inference_mode()
def capture(model: Any, prompts: Sequence[list[int]], rows: Sequence[PromptRows]) -> None:
    """Capture a step of these rows."""
    grid = Grid(len(prompts), len(rows[0].indices), max(map(len, prompts)), 32).rounded()
    StepGraph(model, grid, prefill(model, [ids[:8] for ids in prompts])[0])


def from_edge(
    model: Any, sampler: BatchSampler, prompts: Sequence[list[int]], a: list[int], b: list[int], key: tuple[str, int]
) -> float:
    """How far, in probability, the first two unequal tokens of two answers lie from the draw, in a plain pass."""
    step = next(i for i, pair in enumerate(zip(a, b, strict=True)) if pair[0] != pair[1])
    ids = torch.tensor([[*prompts[int(key[0])], *a[:step]]], device=model.device)
    with torch.inference_mode():
        shares = model(input_ids=ids).logits[0, -1].double().softmax(-1)
    tokens = torch.tensor([a[step], b[step]], device=model.device)
    if key[1] == GREEDY:
        return float((shares.max() - shares[tokens]).max())
    number, ends = UniformRow(sampler.sampling.seed, key[0], "llm", key[1]).at(step), shares.cumsum(-1)[tokens]
    return float(torch.maximum(ends - shares[tokens] - number, number - ends).clamp(min=0).max())


def step_shares(
    model: Any, sampler: BatchSampler, prompts: Sequence[list[int]], n: int, name: str, figures: Figures
) -> Figures:
    """The replay alone, and the time that reading weights, prompts and answers takes at the measured bandwidth."""
    graph = sampler.graphs._kept
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.inference_mode():
        graph._clear([len(ids) for ids in prompts])
        start.record()
        for _ in range(20):
            graph._graph.replay()
        end.record()
    torch.cuda.synchronize()
    about, tokens = facts(model), sum(map(len, prompts)) + len(prompts) * n * sampler.sampling.max_output_tokens / 2
    weights = (about["body_parameters"] + about["head_parameters"]) * about["weight_bytes"]
    limit = 1e3 * (weights + tokens * about["kv_bytes"]) / bandwidth("cuda", 2**30)
    return {
        f"{name}_replay_ms": start.elapsed_time(end) / 20, f"{name}_bytes_ms": limit,
        f"{name}_share_of_bandwidth": limit / float(figures[f"{name}_graph_ms"]),
    }  # fmt: skip


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
    "decode step": decode_step,
    "scores": scores,
    "states": states,
    "uncertainty": uncertainty,
    **dict(itertools.chain(of_methods())),
    "ragate-mha": mha,
    "speed 60": lambda here: throughput(here, 60),
    "speed 1100": lambda here: throughput(here, 1100),
    "qwen2 1.5b": qwen2,
}
