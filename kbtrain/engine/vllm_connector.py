"""KV connector for vLLM that returns the model's hidden states with the reply.

vLLM imports this module by its name (``--kv-transfer-config``), in its own processes: nothing else of kbtrain is needed
there. vLLM's method ``extract_hidden_states`` keeps the residual stream of chosen layers for each token in a paged
cache. This connector reads the few states that gates use and puts them into ``kv_transfer_params`` of the reply.

A request asks with ``kv_transfer_params = {"kbtrain_states": {"draft_tokens": k}}``. The reply has, under the same
name, ``layers`` (ids as in transformers' ``hidden_states``), ``width``, ``prompt_tokens``, ``draft_tokens`` (how many
generated tokens were fed, at most k), and base64 of little-endian float32 arrays of shape (layers, width): ``prompt``
(state at the prompt's last token), and where k > 0 ``draft_mean`` and ``draft_last``. The state of a generated token
exists once the token is fed: a draft of k tokens needs ``max_tokens`` of k + 1 at least. A request without that field
costs nothing here.

With ``{"samples": n}`` beside ``n`` answers the reply has ``ends``, base64 of (n, layers, width): the state of the end
token behind each answer without its last token, in the order of the choices; NaN for an answer of one token. An answer
that ends by its length needs one token more in ``max_tokens``. The engine must know the end token
(``kv_connector_extra_config``).

Nothing is written to disk. Memory per request: two states and two more rows of (layers, width), until it finishes;
for samples one row an answer, until all are finished.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.config import get_layers_from_vllm_config
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

FIELD = "kbtrain_states"
LONGEST_DRAFT = 64  # generated tokens
MOST_SAMPLES = 64  # answers of a request
MOST_GROUPS = 256  # requests whose answers are not all finished


@dataclass
class ReadStates(KVConnectorMetadata):
    """Slots to read in one step: (request, position of the token, block, place in the block)."""

    slots: list[tuple[str, int, int, int]] = field(default_factory=list)


@dataclass
class StepStates(KVConnectorWorkerMetadata):
    """States (slots, layers, width) that one step read, in the order of :attr:`ReadStates.slots`; None: no slot. fp32,
    as an array: a tensor between processes is pickled as its own file."""

    slots: list[tuple[str, int]] = field(default_factory=list)
    states: NDArray[np.float32] | None = None

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """States of the one worker that read any: with tensor parallelism all workers hold the same."""
        assert isinstance(other, StepStates)
        return self if self.states is not None else other


@dataclass
class RequestStates:
    """States of one request so far, in fp32, each (layers, width). ``tentative``: states of positions whose token may
    still be rejected: vLLM feeds a guess behind the newest token."""

    prompt_tokens: int
    draft_tokens: int
    prompt: NDArray[np.float32] | None = None
    summed: NDArray[np.float32] | None = None
    last: NDArray[np.float32] | None = None
    fed: int = 0
    tentative: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    samples: SampleStates | None = None  # of a request for end states; ``prompt`` and draft are not read then
    index: int = 0  # of the answer among its samples
    reply: dict[str, Any] | None = None  # of a request that has finished, and waits for the states of its last step
    output_tokens: int = 0

    def positions(self, first: int, count: int) -> list[int]:
        """Positions to read among ``count`` that a step computes from ``first`` on."""
        if self.samples is not None:  # the guess behind the newest token
            self.tentative.clear()
            return [first + 1] if count == 2 and first >= self.prompt_tokens else []
        wanted_end = self.prompt_tokens + self.draft_tokens
        return [p for p in range(max(first, self.prompt_tokens - 1), first + count) if p < wanted_end]

    def settle(self, computed: int) -> None:
        """Take over the states of positions below ``computed``, whose tokens are certain."""
        for position in sorted(p for p in self.tentative if p < computed):
            state = self.tentative.pop(position)
            if position < self.prompt_tokens:
                self.prompt = state
            else:
                self.summed = state if self.summed is None else self.summed + state
                self.last = state
                self.fed += 1

    def restart(self) -> None:
        """Forget all states: vLLM preempted the request and computes it again."""
        self.prompt = self.summed = self.last = None
        self.fed = 0
        self.tentative.clear()


@dataclass
class SampleStates:
    """End states of the answers to one request, each (layers, width); None for an answer without one."""

    n: int
    ends: dict[int, NDArray[np.float32] | None] = field(default_factory=dict)
    finished: int = 0
    reply: dict[str, Any] = field(default_factory=dict)

    def array(self, shape: tuple[int, int]) -> NDArray[np.float32]:
        """(n, layers, width), NaN for an answer without one."""
        nothing = np.full(shape, np.nan, dtype=np.float32)
        rows = (self.ends.get(i) for i in range(self.n))
        return np.stack([nothing if row is None else row for row in rows])


class StatesConnector(KVConnectorBase_V1, SupportsHMA):
    """Reads states in the step that computes them. Raises ``ValueError`` for an engine it cannot read."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        speculative = vllm_config.speculative_config
        if speculative is None or speculative.method != "extract_hidden_states":
            raise ValueError("kbtrain's connector needs method extract_hidden_states; see kbtrain vllm-args")
        if vllm_config.parallel_config.pipeline_parallel_size > 1:
            raise ValueError("kbtrain's connector reads no states under pipeline parallelism; use tensor parallelism")
        if vllm_config.scheduler_config.async_scheduling:
            raise ValueError("kbtrain's connector needs --no-async-scheduling: positions must be final when it reads")
        self.layers = list(speculative.draft_model_config.hf_config.eagle_aux_hidden_state_layer_ids)
        self._group = _states_group(kv_cache_config)
        self._block_size = int(kv_cache_config.kv_cache_groups[self._group].kv_cache_spec.block_size)
        self._requests: dict[str, RequestStates] = {}  # scheduler
        self._finished: list[tuple[str, RequestStates]] = []  # scheduler
        self._samples: OrderedDict[str, SampleStates] = OrderedDict()  # scheduler: by request
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config or {}
        self.end_token: int | None = extra.get("end_token")
        self._width = int(vllm_config.model_config.get_hidden_size())
        self._cache: torch.Tensor | None = None  # worker: (blocks, layers, block size, width)
        self._reads = True  # worker: rank 0 of tensor parallelism
        self._step = StepStates()  # worker

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str:
        """All layers of a token lie together in memory."""
        return "LBNHC"

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Worker: find the cache of states."""
        from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
        from vllm.model_executor.models.extract_hidden_states import CacheOnlyAttentionLayer

        names = list(get_layers_from_vllm_config(self._vllm_config, CacheOnlyAttentionLayer, list(kv_caches)))
        if len(names) != 1:
            raise ValueError(f"kbtrain's connector expects one cache of states, vLLM has {len(names)}")
        cache = kv_caches[names[0]]
        if cache.shape[1:3] != (len(self.layers), self._block_size):
            raise ValueError(f"cache of states: shape {tuple(cache.shape)}, expected layers and block size at 1 and 2")
        self._cache = cache
        correct_sampling_on_cpu()
        if self.end_token is not None:
            guess_token(int(self.end_token))
        self._reads = get_tensor_model_parallel_rank() == 0

    # Worker: one step

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Load nothing: states are only read."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Wait for nothing."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Save nothing by layer: the states are complete in :meth:`wait_for_save`."""

    def build_connector_worker_meta(self) -> StepStates:
        """This step's states; vLLM takes the object here and sends it after :meth:`wait_for_save` has filled it."""
        self._step = StepStates()
        return self._step

    def wait_for_save(self) -> None:
        """Read the states of this step's slots, after the pass that writes them into the cache."""
        step = self._get_connector_metadata() if self.has_connector_metadata() else None
        if not isinstance(step, ReadStates) or not step.slots or not self._reads:
            return
        assert self._cache is not None
        blocks, places = (torch.tensor([slot[i] for slot in step.slots], device=self._cache.device) for i in (2, 3))
        self._step.slots = [(request, position) for request, position, _, _ in step.slots]
        self._step.states = self._cache[blocks, :, places].float().cpu().numpy()

    # Scheduler

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """No keys and values come from elsewhere."""
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Remember a request that asks for states."""
        wish = _wish(request)
        if wish is None:
            return
        if request.request_id in self._requests:
            self._requests[request.request_id].restart()
            return
        states = RequestStates(request.num_prompt_tokens, _number(wish, "draft_tokens", LONGEST_DRAFT))
        if _number(wish, "samples", MOST_SAMPLES):
            states.index, states.samples = self._sample_group(request, wish)
        self._requests[request.request_id] = states

    def _sample_group(self, request: Any, wish: Mapping[str, Any]) -> tuple[int, SampleStates]:
        """Index of an answer, and the states of all answers to its request: vLLM names the i-th ``i_NAME``."""
        index, _, name = request.request_id.partition("_")
        if not index.isdecimal():  # a request for one answer, though it may announce more
            index, name = "0", request.request_id
        group = self._samples.setdefault(name, SampleStates(_number(wish, "samples", MOST_SAMPLES)))
        while len(self._samples) > MOST_GROUPS:  # of clients that announced more answers than they asked for
            self._samples.popitem(last=False)
        return int(index), group

    def build_connector_meta(self, scheduler_output: Any) -> ReadStates:
        """Slots that the worker shall read in this step."""
        step = ReadStates()
        if not self._requests:
            return step
        cached = scheduler_output.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        computed |= {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        for name, first in computed.items():
            states = self._requests.get(name)
            if states is None:
                continue
            states.settle(first)
            positions = states.positions(first, scheduler_output.num_scheduled_tokens[name])
            if positions:
                blocks = self._kv_cache_manager.get_block_ids(name)[self._group]
                step.slots += [(name, p, blocks[p // self._block_size], p % self._block_size) for p in positions]
        return step

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The reply's fields; :meth:`update_connector_output` of the same step fills them."""
        states = self._requests.pop(request.request_id, None)
        wish = _wish(request)
        if states is None and not (wish and _number(wish, "samples", MOST_SAMPLES)):
            return False, None
        if states is None:  # an answer that ends before it begins counts among its siblings
            states = RequestStates(request.num_prompt_tokens, 0)
            states.index, states.samples = self._sample_group(request, wish or {})
        states.output_tokens = request.num_output_tokens
        self._finished.append((request.request_id, states))
        if states.samples is None:
            states.reply = {}
            return False, {FIELD: states.reply}
        states.samples.finished += 1
        if states.samples.finished < states.samples.n:
            return False, None
        for name in [name for name, group in self._samples.items() if group is states.samples]:
            del self._samples[name]
        return False, {FIELD: states.samples.reply}

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """As :meth:`request_finished_all_groups`."""
        return self.request_finished_all_groups(request, (block_ids,))

    def update_connector_output(self, connector_output: Any) -> None:
        """Take over the states that a step read, and fill the replies of requests that it finished."""
        step = connector_output.kv_connector_worker_meta
        finished = dict(self._finished)
        if isinstance(step, StepStates) and step.states is not None:
            for (name, position), state in zip(step.slots, step.states, strict=True):
                states = finished.get(name) or self._requests.get(name)
                if states is not None:
                    states.tentative[position] = state
        for states in finished.values():
            # the last sampled token was never fed
            certain = states.prompt_tokens + max(states.output_tokens - 1, 0)
            if states.samples is not None:
                states.samples.ends[states.index] = states.tentative.get(certain)
                if states.samples.finished == states.samples.n:
                    states.samples.reply |= self._samples_reply(states)
                continue
            states.settle(certain)
            assert states.reply is not None
            states.reply |= _reply(states, self.layers)
        self._finished.clear()

    def _samples_reply(self, states: RequestStates) -> Mapping[str, Any]:
        if self.end_token is None:
            return {"layers": self.layers, "error": "it knows no end token"}
        assert states.samples is not None
        ends = states.samples.array((len(self.layers), self._width))
        return {
            "layers": self.layers, "width": self._width, "prompt_tokens": states.prompt_tokens,
            "end_token": self.end_token, "ends": base64.b64encode(ends.tobytes()).decode(),
        }  # fmt: skip


def _wish(request: Any) -> dict[str, Any] | None:
    """A request's wish for states; None for a request without one."""
    wish = (request.kv_transfer_params or {}).get(FIELD)
    return None if wish is None else wish if isinstance(wish, dict) else {}


def _number(wish: Mapping[str, Any], name: str, most: int) -> int:
    value = wish.get(name, 0)
    return min(max(value, 0), most) if isinstance(value, int) else 0


def guess_token(token: int) -> None:
    """Make vLLM guess this token behind each generated one, in place of a second copy of that one. A guess is accepted
    where the model draws it, so answers keep their distribution. Its state is computed in any case: with the end token
    it is the state at which SeaKR reads an answer that ends there."""
    from vllm.v1.spec_decode.extract_hidden_states import ExtractHiddenStatesProposer

    propose = ExtractHiddenStatesProposer.propose

    def propose_token(*args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.full_like(propose(*args, **kwargs), token)

    ExtractHiddenStatesProposer.propose = propose_token


def correct_sampling_on_cpu() -> None:
    """Replace vLLM's expansion of temperature, top-k and top-p to tokens where it returns uninitialised memory. vLLM
    0.32 on a CPU writes the expansion into an int64 copy that it drops, so every answer drawn at a temperature above 0
    is noise with this method. A version that expands correctly is left as it is."""
    from vllm.v1.sample import rejection_sampler

    ones = torch.ones(1, dtype=torch.int32)
    if not torch.accelerator.is_available() and rejection_sampler.expand_batch_to_tokens(ones * 0.5, ones, 1) != 0.5:
        rejection_sampler.expand_batch_to_tokens = expand_to_tokens


def expand_to_tokens(
    x: torch.Tensor, cu_num_tokens: torch.Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> torch.Tensor:
    """Values of requests (n,) as values of their tokens (``num_tokens``,), by the cumulative numbers of these."""
    counts = torch.diff(cu_num_tokens.long(), prepend=torch.zeros(1, dtype=torch.long))
    return torch.where(x == replace_from, replace_to, x).to(x.dtype).repeat_interleave(counts)


def _states_group(kv_cache_config: Any) -> int:
    """Index of the cache group that holds the states."""
    from vllm.v1.kv_cache_interface import HiddenStateCacheSpec

    groups = kv_cache_config.kv_cache_groups
    with_states = [i for i, group in enumerate(groups) if isinstance(group.kv_cache_spec, HiddenStateCacheSpec)]
    if not with_states and len(groups) == 1:
        return 0
    if len(with_states) != 1:
        raise ValueError(
            f"kbtrain's connector: {len(with_states)} of {len(groups)} cache groups hold states, expected 1"
        )
    return with_states[0]


def _reply(states: RequestStates, layers: list[int]) -> Mapping[str, Any]:
    if states.prompt is None:  # aborted before its prompt was read
        return {"layers": layers, "error": "the request ended before its prompt was computed"}
    parts = {"prompt": states.prompt}
    if states.draft_tokens:
        mean = states.prompt if states.summed is None else (states.summed / states.fed).astype(states.prompt.dtype)
        parts |= {"draft_mean": mean, "draft_last": states.prompt if states.last is None else states.last}
    return {
        "layers": layers, "width": states.prompt.shape[1], "prompt_tokens": states.prompt_tokens,
        "draft_tokens": states.fed,
        **{name: base64.b64encode(part.tobytes()).decode() for name, part in parts.items()},
    }  # fmt: skip
