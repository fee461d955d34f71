"""The vLLM back end: its offline engine, n answers from one prompt, prefixes cached, a seed for each request."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kbtrain.answers.grading import is_empty
from kbtrain.answers.thoughts import ReadAnswer, read_answer
from kbtrain.errors import UserError
from kbtrain.llm.base import AnswerRequest, Sampling, prompt_ids, request_seed
from kbtrain.llm.outputs import ThoughtTokens
from kbtrain.llm.served_states import ServedStates, line_break_tokens, read_states, state_request
from kbtrain.models.batching import BatchLimits, windows
from kbtrain.models.load import load_tokenizer, name_of, resolve
from kbtrain.prompts.kbm import answer_fingerprint
from kbtrain.records import GREEDY, Finish, Sample, SampleSet

DTYPES = {"auto": "auto", "bf16": "bfloat16", "fp32": "float32", "fp16": "float16", "fp16-anyway": "float16"}


class VllmLLM:
    """Implements :class:`~kbtrain.llm.base.LLM` with an open ``vllm.LLM``.

    A sample's ``logprob`` is at the sampling temperature, as everywhere; the greedy answer's is at temperature 1,
    because vLLM takes temperature 0 for "greedy". Answers are stored by the window: a kill loses one window at most.
    Each request has a seed of its own, but not on a CPU, where vLLM (0.32) dies of seeded requests whose prompts it
    cuts in two: there the seed is the engine's, and a run that is drawn again gives other answers.
    """

    def __init__(self, name: str, engine: Any, sampling: Sampling, window: int = 256) -> None:
        self.name = name
        self.engine = engine
        self.tokenizer = load_tokenizer(name)
        self.sampling = sampling
        self.window = window
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
        limits: BatchLimits,
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
            "max_num_seqs": limits.rows, "max_model_len": sampling.max_prompt_tokens + sampling.max_output_tokens,
            "enable_prefix_caching": True, "generation_config": "vllm", "logprobs_mode": "processed_logprobs",
            "disable_log_stats": True, "seed": request_seed(sampling.seed, "", "llm") % 2**32, **(extra or {}),
        }  # fmt: skip
        try:
            return cls(name, vllm.LLM(**arguments), sampling, limits.window)
        except (OSError, ValueError, RuntimeError, TypeError) as error:
            first = str(error).strip().splitlines()[0][:200]
            raise UserError(f"model '{name}': vLLM cannot open it ({first}); its own log above says more") from None

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
        """As :meth:`kbtrain.llm.base.LLM.answer`, one window a group."""
        missing = (request for request in requests if (request.question.id, request.condition) not in done)
        for window in windows(missing, self.window):
            yield self._window(window)

    def _window(self, requests: Sequence[AnswerRequest]) -> list[SampleSet]:
        fitted = [prompt_ids(self.tokenizer, request, self.sampling.max_prompt_tokens) for request in requests]
        opened = [self._thoughts.is_opened_by(ids) for ids, _ in fitted]
        keys = [  # a request and a number of answers
            (i, n)
            for i, request in enumerate(requests)
            for n in ([GREEDY] if request.greedy else []) + ([request.n] if request.n else [])
        ]
        outputs = self._generate(requests, fitted, keys)
        early = [k for k in keys if self._sends_stop and self._is_stopped_early(outputs[k].outputs, opened[k[0]])]
        if early:  # a stop string ended answers before they began; no later request is sent any
            self._sends_stop = False
            outputs |= self._generate(requests, fitted, early)
        sample_sets = []
        for i, (request, (ids, cut)) in enumerate(zip(requests, fitted, strict=True)):
            greedy = self._samples(outputs[i, GREEDY].outputs, GREEDY, opened[i])[0] if request.greedy else None
            drawn = self._samples(outputs[i, request.n].outputs, 0, opened[i]) if request.n else ()
            sample_sets.append(SampleSet(request.question.id, request.condition, tuple(drawn), greedy, len(ids), cut))
        return sample_sets

    def _generate(
        self,
        requests: Sequence[AnswerRequest],
        fitted: Sequence[tuple[list[int], int]],
        keys: Sequence[tuple[int, int]],
    ) -> dict[tuple[int, int], Any]:
        from vllm.inputs import TokensPrompt

        prompts: list[Any] = [TokensPrompt(prompt_token_ids=fitted[i][0]) for i, _ in keys]
        how = [self._parameters(requests[i], n) for i, n in keys]
        return dict(zip(keys, self.engine.generate(prompts, how, use_tqdm=False), strict=True))

    def _is_stopped_early(self, outputs: Sequence[Any], opened: bool) -> bool:
        """True if a stop string ended an output in its thought, or at a blank line: vLLM applies them to all text."""
        return any(isinstance(o.stop_reason, str) and is_empty(self._read(o, opened).text) for o in outputs)

    def read_states(self, prompts: Sequence[Sequence[int]], draft_tokens: int) -> list[ServedStates]:
        """States of prompts (token ids) and their greedy drafts, in their order, from a request each.

        Raises :class:`UserError` for an engine without the arguments of :mod:`kbtrain.engine.vllm_args`.
        """
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        ends = [*self._end, *line_break_tokens(self.tokenizer)]
        how = SamplingParams(
            temperature=0.0, max_tokens=draft_tokens + 1, stop_token_ids=ends,
            extra_args={"kv_transfer_params": state_request(draft_tokens)},
        )  # fmt: skip
        tokens = [TokensPrompt(prompt_token_ids=list(ids)) for ids in prompts]
        outputs = self.engine.generate(tokens, [how] * len(tokens), use_tqdm=False)
        return [
            read_states(output.kv_transfer_params, ids, output.outputs[0].token_ids)
            for output, ids in zip(outputs, prompts, strict=True)
        ]

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
