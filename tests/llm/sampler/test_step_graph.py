"""Steps on a grid of fixed tensors, as a GPU replays them, draw what the plain decoder draws; here without capture."""

import pytest
import torch
from support.drawn_tokens import DrawnTokens

from kbtrain.llm.base import AnswerRequest, Sampling
from kbtrain.llm.hidden_states import StatesObserver
from kbtrain.llm.sampler.observer import TokenUncertainty
from kbtrain.llm.sampler.step_graph import StepGraph
from kbtrain.llm.transformers_llm import TransformersLLM

SERVED = ["llama", "qwen2", "gemma", "gemma2", "gemma3", "mistral"]


def on_grid(llm):
    """Let a sampler on a CPU take the steps that a GPU would capture."""
    llm._sampler.graphs.problem, llm._sampler.graphs.capture = None, False
    llm._ready_samplers = lambda: [llm._sampler]


def drawn(llm, asks, *observers):
    tokens = DrawnTokens()
    sampler = llm._sampler.observed(tokens, *observers)
    for batch in llm._batches(asks, frozenset()):
        llm._answers(sampler, batch)
    return tokens.tokens, tokens.finish


@pytest.fixture
def grids(monkeypatch):
    """The grid of each graph that is made."""
    made, begun = [], StepGraph.__init__

    def noted(self, model, grid, *rest):
        made.append(grid)
        begun(self, model, grid, *rest)

    monkeypatch.setattr(StepGraph, "__init__", noted)
    return made


@pytest.mark.parametrize("kind", SERVED)
def test_answers_are_those_of_the_plain_decoder(kind, make_model, tokenizer, question, grids):
    """Prompts of unequal lengths, rows that end early, greedy answers beside drawn ones, a common prefix."""
    model = make_model(kind)
    model.generation_config.eos_token_id = list(range(1, 25))
    llm = TransformersLLM(kind, model, tokenizer, Sampling(max_new_tokens=20, stop=(), max_prompt_tokens=130))
    asks = [AnswerRequest(question(f"q{i}", text="so " * i + "what?"), "llm", None, n=6) for i in range(4)]
    plain = drawn(llm, asks)
    assert not grids
    on_grid(llm)
    assert drawn(llm, asks) == plain
    assert [(grid.questions, grid.width) for grid in grids] == [(4, 7)]
    lengths = {len(tokens) for tokens in plain[0].values()}
    assert len(lengths) > 3 and set(plain[1].values()) == {"eos", "length"}


def test_a_kept_graph_serves_later_batches_that_fit_and_no_others(make_model, tokenizer, question, grids):
    llm = TransformersLLM("m", make_model("llama"), tokenizer, Sampling(max_new_tokens=16, stop=()))
    batches = [
        [AnswerRequest(question(f"q{b}-{i}", text="very " * words + "where?"), "llm", None, n=4) for i in range(count)]
        for b, (count, words) in enumerate([(4, 8), (3, 5), (4, 9), (1, 5), (4, 120)])
    ]
    plain = [drawn(llm, asks) for asks in batches]
    on_grid(llm)
    assert [drawn(llm, asks) for asks in batches] == plain
    assert [grid.questions for grid in grids] == [4, 1, 4]  # one of four prompts would leave most rows unused
    llm.model.get_input_embeddings().weight.data = llm.model.get_input_embeddings().weight.data.clone()
    assert drawn(llm, batches[0]) == plain[0] and len(grids) == 4  # a graph reads weights where they were


def test_states_and_uncertainties_are_read_at_their_rows(make_model, tokenizer, question):
    """Passes that are read, of the answers' first tokens, among passes that are not."""
    llm = TransformersLLM("m", make_model("llama"), tokenizer, Sampling(max_new_tokens=16, stop=()))
    asks = [AnswerRequest(question(f"q{i}", text="so " * i + "what?"), "llm", None, n=3) for i in range(3)]

    class Notes(StatesObserver):
        def done(self, row):
            super().done(row)
            noted[row.prompt.question_id, row.index] = (row.notes[self].states(), row.notes[uncertainty])

    results, uncertainty = [], TokenUncertainty()
    for prepare in (lambda llm: None, on_grid):
        prepare(llm)
        noted = {}
        drawn(llm, asks, Notes(3), uncertainty)
        results.append(noted)
    plain, grid = results
    assert plain.keys() == grid.keys() and len(plain) == 12
    for key, (states, numbers) in plain.items():
        assert grid[key][0] == pytest.approx(states, abs=1e-4)
        for name in ("entropies", "surprisals", "ratios"):
            assert getattr(grid[key][1], name) == pytest.approx(getattr(numbers, name), abs=1e-4)


def test_a_pass_with_new_hooks_is_not_replayed(make_model, tokenizer, question):
    """A replay runs none: the graph says so by starting the step from Python."""
    llm = TransformersLLM("m", make_model("llama"), tokenizer, Sampling(max_new_tokens=16, stop=()))
    on_grid(llm)
    drawn(llm, [AnswerRequest(question("q"), "llm", None, n=2)])
    graph = llm._sampler.graphs._kept
    replays = []
    graph._logits = torch.zeros(len(graph._tokens), 8)
    graph._graph = type("Graph", (), {"replay": lambda self: replays.append(1)})()
    tokens, seen = torch.zeros(len(graph._tokens), dtype=torch.long), []
    with torch.inference_mode():
        assert graph.step(tokens) is graph._logits and replays == [1]
        handle = llm.model.model.layers[0].register_forward_hook(lambda *given: seen.append(1))
        assert graph.step(tokens) is not graph._logits
        handle.remove()
        graph.step(tokens)
    assert replays == [1, 1] and seen == [1]


def test_what_a_gpu_cannot_capture_is_started_from_python_with_one_warning(
    make_model, tokenizer, question, monkeypatch
):
    llm = TransformersLLM("m", make_model("llama"), tokenizer, Sampling(max_new_tokens=16, stop=()))
    asks = [AnswerRequest(question("q"), "llm", None, n=2)]
    plain = drawn(llm, asks)
    on_grid(llm)

    def refused(self):
        raise RuntimeError("called a synchronizing CUDA operation")

    llm._sampler.graphs.capture = True
    monkeypatch.setattr(StepGraph, "_capture", refused)
    with pytest.warns(UserWarning, match=r"started from Python \(slow\): called a synchronizing"):
        assert drawn(llm, asks) == plain
    assert drawn(llm, asks) == plain  # no second warning: the suite makes it an error
