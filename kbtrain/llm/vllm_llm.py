"""The vLLM back end: its offline engine, n answers from one prompt, prefixes cached, a seed for each request.

The engine runs in its own process and is kept full: while answers are read and stored here, it draws the next.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kbtrain.answers.grading import is_empty
from kbtrain.answers.thoughts import ReadAnswer, read_answer
from kbtrain.errors import UserError
from kbtrain.llm.base import AnswerRequest, Sampling, prompt_ids, request_seed
from kbtrain.llm.outputs import ThoughtTokens
from kbtrain.llm.served_states import ServedStates, line_break_tokens, read_states, state_request
from kbtrain.models.load import load_tokenizer, name_of, resolve
from kbtrain.prompts.kbm import answer_fingerprint
from kbtrain.records import GREEDY, Finish, Sample, SampleSet

DTYPES = {"auto": "auto", "bf16": "bfloat16", "fp32": "float32", "fp16": "float16", "fp16-anyway": "float16"}


@dataclass
class UnderWay:
    """A question-condition whose answers are being drawn: its prompt, and what has come of it by number of answers."""

    request: AnswerRequest
    ids: list[int]
    cut: int
    opened: bool
    outputs: dict[int, Sequence[Any]] = field(default_factory=dict)

    @property
    def counts(self) -> list[int]:
        """The numbers of answers to ask for, one vLLM request each."""
        return ([GREEDY] if self.request.greedy else []) + ([self.request.n] if self.request.n else [])


class Queue:
    """Requests in vLLM's engine, which draws while its outputs are read here."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine.llm_engine
        self._numbers = itertools.count()
        self._n_answers: dict[str, int] = {}  # by request that is not finished
        self._finished: dict[str, Any] = {}
        self._most = 2 * self._engine.vllm_config.scheduler_config.max_num_seqs  # answers: one half waits

    @property
    def is_full(self) -> bool:
        """True if more answers would only wait."""
        return sum(self._n_answers.values()) >= int(self._most)

    def add(self, ids: Sequence[int], how: Any) -> str:
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        key, how.output_kind = str(next(self._numbers)), RequestOutputKind.FINAL_ONLY
        self._n_answers[key] = how.n
        self._engine.add_request(key, TokensPrompt(prompt_token_ids=list(ids)), how)
        return key

    def finished(self, among: Collection[str]) -> dict[str, Any]:
        """Outputs that are whole by now, by key; waits for some of those ``among`` which the rest is not."""
        while not any(key in self._finished for key in among):
            for output in filter(lambda output: output.finished, self._engine.step()):
                self._finished[output.request_id] = output
                del self._n_answers[output.request_id]
        return {key: self._finished.pop(key) for key in among if key in self._finished}


class VllmLLM:
    """Implements :class:`~kbtrain.llm.base.LLM` with an open ``vllm.LLM``.

    A sample's ``logprob`` is at the sampling temperature, as everywhere; the greedy answer's is at temperature 1,
    because vLLM takes temperature 0 for "greedy". A kill loses the answers under way.
    Each request has its own seed, but not on a CPU, where vLLM (0.32) dies of seeded requests whose prompts it
    cuts in two: there the seed is the engine's, and a run that is drawn again gives other answers.
    """

    def __init__(self, name: str, engine: Any, sampling: Sampling) -> None:
        self.name = name
        self.engine = engine
        self.tokenizer = load_tokenizer(name)
        self.sampling = sampling
        self._queue = Queue(engine)
        from vllm.platforms import current_platform

        self.seeded = not current_platform.is_cpu()
        self._end = _end_ids(engine)
        self._thoughts = ThoughtTokens(self.tokenizer)
        self._sends_stop = sampling.max_thought_tokens == 0

    @classmethod
    def load(
        cls,
        name: str,
        sampling: Sampling,
        dtype: str = "auto",
        tensor_parallel: int = 1,
        extra: Mapping[str, Any] | None = None,
    ) -> VllmLLM:
        """Open a model by embedded name, folder or hub id; ``extra`` are more arguments of ``vllm.LLM``."""
        try:
            import vllm
        except ImportError:
            raise UserError('backend vllm: vLLM is not installed here; pip install "kbtrain[vllm]"') from None
        if dtype not in DTYPES:
            raise UserError(f"key 'dtype': unknown '{dtype}'; valid: {', '.join(DTYPES)}")
        arguments = {
            "model": resolve(name), "dtype": DTYPES[dtype], "tensor_parallel_size": tensor_parallel,
            "max_model_len": sampling.max_prompt_tokens + sampling.max_output_tokens,
            "enable_prefix_caching": True, "generation_config": "vllm", "logprobs_mode": "processed_logprobs",
            "disable_log_stats": True, "seed": request_seed(sampling.seed, "", "llm") % 2**32, **(extra or {}),
        }  # fmt: skip
        try:
            return cls(name, vllm.LLM(**arguments), sampling)
        except (OSError, ValueError, RuntimeError, TypeError) as error:
            first = str(error).strip().splitlines()[0][:200]
            raise UserError(f"model '{name}': vLLM cannot open it ({first}); see its log above") from None

    def facts(self) -> dict[str, Any]:
        import torch

        return {
            "dtype": name_of(self.engine.llm_engine.model_config.dtype),
            "device": "cuda" if torch.cuda.is_available() else "cpu",
            "prompts": answer_fingerprint(self.tokenizer),
            "seeds": "of each request" if self.seeded else "of the engine",
        }

    def answer(
        self, requests: Iterable[AnswerRequest], done: Collection[tuple[str, str]] = frozenset()
    ) -> Iterator[list[SampleSet]]:
        """As :meth:`kbtrain.llm.base.LLM.answer`, each question-condition as soon as it is whole."""
        asked: dict[str, tuple[UnderWay, int, bool]] = {}  # by key; n, and whether stop strings were sent
        for request in requests:
            if (request.question.id, request.condition) not in done:
                ids, cut = prompt_ids(self.tokenizer, request, self.sampling.max_prompt_tokens)
                begun = UnderWay(request, ids, cut, self._thoughts.is_opened_by(ids))
                asked |= {self._send(begun, n): (begun, n, self._sends_stop) for n in begun.counts}
            while asked and self._queue.is_full:  # else states' requests fill it
                yield self._whole(asked)
        while asked:
            yield self._whole(asked)

    def _send(self, begun: UnderWay, n: int) -> str:
        return self._queue.add(begun.ids, self._parameters(begun.request, n))

    def _whole(self, asked: dict[str, tuple[UnderWay, int, bool]]) -> list[SampleSet]:
        """The question-conditions whose last answer has come; waits for one."""
        whole: list[SampleSet] = []
        while not whole:
            for key, output in self._queue.finished([*asked]).items():
                begun, n, with_stop = asked.pop(key)
                if with_stop and self._is_stopped_early(output.outputs, begun.opened):
                    self._sends_stop = False  # it ended answers before they began; no later request is sent any
                    asked[self._send(begun, n)] = (begun, n, False)
                    continue
                begun.outputs[n] = output.outputs
                if begun.outputs.keys() == {*begun.counts}:
                    whole.append(self._sample_set(begun))
        return whole

    def _sample_set(self, begun: UnderWay) -> SampleSet:
        request, outputs = begun.request, begun.outputs
        greedy = self._samples(outputs[GREEDY], GREEDY, begun.opened)[0] if request.greedy else None
        drawn = self._samples(outputs[request.n], 0, begun.opened) if request.n else ()
        return SampleSet(request.question.id, request.condition, tuple(drawn), greedy, len(begun.ids), begun.cut)

    def _is_stopped_early(self, outputs: Sequence[Any], opened: bool) -> bool:
        """True if a stop string ended an output in its reasoning, or at a blank line: vLLM applies them to all text."""
        return any(isinstance(o.stop_reason, str) and is_empty(self._read(o, opened).text) for o in outputs)

    def begin_states(self, prompts: Sequence[Sequence[int]], draft_tokens: int) -> list[Callable[[], ServedStates]]:
        """Ask for the states of prompts (token ids) and their greedy drafts, a request each; what returns each of them.
        Raises :class:`UserError` for an engine without the arguments of :mod:`kbtrain.engine.vllm_args`."""
        from vllm import SamplingParams

        how = {
            "temperature": 0.0, "max_tokens": draft_tokens + 1,
            "stop_token_ids": [*self._end, *line_break_tokens(self.tokenizer)],
            "extra_args": {"kv_transfer_params": state_request(draft_tokens)},
        }  # fmt: skip
        keys = [self._queue.add(ids, SamplingParams(**how)) for ids in prompts]
        return [functools.partial(self._states, key, ids) for key, ids in zip(keys, prompts, strict=True)]

    def _states(self, key: str, ids: Sequence[int]) -> ServedStates:
        output = self._queue.finished([key])[key]
        return read_states(output.kv_transfer_params, ids, output.outputs[0].token_ids)

    def _parameters(self, request: AnswerRequest, n: int) -> Any:
        from vllm import SamplingParams

        s = self.sampling
        drawn = {} if n == GREEDY else {
            "n": n, "temperature": s.temperature, "top_k": s.top_k, "top_p": s.top_p,
            "seed": request_seed(s.seed, request.question.id, request.condition) if self.seeded else None,
        }  # fmt: skip
        return SamplingParams(
            **{"temperature": 0.0, **drawn}, max_tokens=s.max_output_tokens, logprobs=0,
            stop=list(s.stop) if self._sends_stop else [], stop_token_ids=self._end,
            skip_special_tokens=not self._thoughts.special,
        )  # fmt: skip

    def _samples(self, outputs: Sequence[Any], first: int, opened: bool) -> list[Sample]:
        samples = []
        for index, output in enumerate(sorted(outputs, key=lambda output: output.index), first):
            # not strict: behind a stop string vLLM may have drawn on, and drops such tokens only
            pairs = zip(output.logprobs, output.token_ids, strict=False)
            answer, logprob = self._read(output, opened), math.fsum(step[token].logprob for step, token in pairs)
            samples.append(Sample(index, answer.text, len(output.token_ids), answer.finish, logprob))
        return samples

    def _read(self, output: Any, opened: bool) -> ReadAnswer:
        finish: Finish = "stop" if isinstance(output.stop_reason, str) else "eos"
        finish = "length" if output.finish_reason == "length" else finish
        return read_answer(self._thoughts.split(output.text, opened), finish, self.sampling.stop)


def _end_ids(engine: Any) -> list[int]:
    """The end ids of model and generation config; the tokenizer's vLLM knows by itself."""
    config = engine.llm_engine.model_config
    end_ids: set[int] = set()
    for ids in (config.hf_config.eos_token_id, config.try_get_generation_config().get("eos_token_id")):
        end_ids.update([ids] if isinstance(ids, int) else ids or [])
    return sorted(end_ids)
