"""A gate that reads the model in this process reads the passes that the plain answer goes on from."""

import json
from contextlib import contextmanager

import pytest
from serve_support import serving
from support.gate_folders import draft, draft_probe, probe

from kbtrain.gate_folder import CARD, Threshold, set_threshold
from kbtrain.gates.registry import load_gate
from kbtrain.serve.kept_passes import MOST

TEXTS = ["What is the capital of place 3?", "Which currency has place 5?", "What is the language of place 7?"]
KEPT = "kbtrain_prefills_kept_total"


DRAFTED = {probe: 0, draft_probe: 4, draft: 2}  # tokens of a draft


@pytest.fixture(scope="module", params=list(DRAFTED), ids=lambda build: build.__name__)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory, kind):
    made = tmp_path_factory.mktemp("kept") / "gate"
    made.mkdir()
    kind(made)
    keys = ("mastery", "certainty", "benefit")
    for name in ["draft_margin"] if kind is draft else [f"{kind.__name__}_{key}" for key in keys]:
        set_threshold(made, name, Threshold(threshold=1.0, rule="given", dev_file_sha256="", n_dev=0))
    return made


@pytest.fixture(scope="module")
def model(folder):
    return json.loads((folder / CARD).read_text())["base_model"]


@pytest.fixture(scope="module")
def local(folder, model):
    with serving(folder, model=model, prompt="trained", search="serve_support:echo") as running:
        yield running


@pytest.fixture
def passes(local, monkeypatch):
    """Lengths of the prompts that go through the model, one a pass; the gate's batches by themselves count too."""
    from kbtrain.gates.probe import gate as reader
    from kbtrain.llm.sampler import sampler

    seen, one, many = [], sampler.prefill, reader.prompt_states

    def prefill(model, prompts, *args, **more):
        seen.extend(len(ids) for ids in prompts)
        return one(model, prompts, *args, **more)

    def prompt_states(model, prompts):
        seen.extend(len(ids) for ids in prompts)
        return many(model, prompts)

    monkeypatch.setattr(sampler, "prefill", prefill)
    monkeypatch.setattr(reader, "prompt_states", prompt_states)
    return seen


def ask(server, text, policy="auto", **more):
    body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 12, **more}
    return server.post("/v1/chat/completions", body, {"x-kbtrain-retrieve": policy})


@contextmanager
def computed(server):
    """Number of passes through the answering model, in a list."""
    seen = []
    hook = server.service.upstream.model.register_forward_hook(lambda *_: seen.append(1))
    yield seen
    hook.remove()


@pytest.mark.parametrize(
    "more",
    [{}, {"temperature": 0.8, "seed": 4}, {"max_tokens": 1}, {"max_tokens": 3}, {"stop": ["e"]}],
    ids=["greedy", "drawn", "one token", "within the draft", "stop string"],
)
def test_the_answer_is_the_same_token_for_token_and_the_prompt_read_once(local, passes, more):
    for text in TEXTS:
        before = local.metric(KEPT)
        plain = ask(local, text, "never", **more).json  # no decision: a pass for the answer alone
        assert len(passes) == 1 and local.metric(KEPT) == before
        gated = ask(local, text, **more)
        assert passes == [passes[0]] * 2 and local.metric(KEPT) == before + 1
        assert gated.headers["x-kbtrain-reason"] == "below-threshold"
        assert gated.json["choices"] == plain["choices"] and gated.json["usage"] == plain["usage"]
        passes.clear()


def test_the_tokens_of_a_draft_are_not_computed_again(local, kind):
    for text in TEXTS:
        with computed(local) as alone:
            plain = ask(local, text, "never").json
        with computed(local) as behind:
            gated = ask(local, text).json
        assert gated["choices"] == plain["choices"] and plain["usage"]["completion_tokens"] == 12 == len(alone)
        # the last token of the gate `draft` is drawn and not fed; a draft may end at a line break
        fed = DRAFTED[kind] - (kind is draft)
        assert len(alone) - len(behind) == 1 + fed


def test_an_answer_that_leaves_the_draft_is_computed_from_there_on(local, kind):
    if kind is probe:
        pytest.skip("nothing is drafted")
    more = {"temperature": 2.0, "seed": 1}  # drawn almost evenly: other tokens than the draft's
    with computed(local) as behind:
        gated = ask(local, TEXTS[0], **more).json
    assert gated["choices"] == ask(local, TEXTS[0], "never", **more).json["choices"]
    assert len(behind) == gated["usage"]["completion_tokens"] - 1  # all but the prompt's


def test_a_model_that_no_shared_prefix_serves_goes_on_from_it_too(folder, model, kind, monkeypatch):
    if kind is not draft_probe:
        pytest.skip("one gate of them is enough")
    from kbtrain.serve import local_model

    monkeypatch.setattr(local_model, "prefix_problem", lambda *_: "the model's attention is its own")
    with serving(folder, model=model, prompt="trained") as server:
        assert not server.service.upstream.sampler.shared
        plain = ask(server, TEXTS[0], "never").json
        with computed(server) as behind:
            gated = ask(server, TEXTS[0]).json
    assert gated["choices"] == plain["choices"] and len(behind) == 12 - 1 - DRAFTED[kind]


def test_a_stream_goes_on_from_it_too(local, passes):
    whole = ask(local, TEXTS[0]).json["choices"][0]["message"]["content"]
    events = ask(local, TEXTS[0], stream=True).body.decode().split("\n\n")
    parts = [json.loads(event.removeprefix("data: ")) for event in events if event.startswith("data: {")]
    assert "".join(part["choices"][0]["delta"].get("content") or "" for part in parts) == whole
    assert len(passes) == 2


def test_a_searched_question_is_answered_from_its_own_prompt(local, passes):
    before = local.metric(KEPT)
    body = {"messages": [{"role": "user", "content": TEXTS[0]}], "temperature": 0, "max_tokens": 12}
    searched = local.post("/v1/chat/completions", body, {"x-kbtrain-threshold": "0"})
    forced = ask(local, TEXTS[0], "always")
    assert searched.headers["x-kbtrain-retrieved"] == "1" and local.metric(KEPT) == before
    assert searched.json["choices"] == forced.json["choices"]
    assert len(passes) == 3 and passes[1] == passes[2] > passes[0]


def test_scores_are_those_of_the_gate_alone(local, folder):
    gate = load_gate(folder)
    for texts in (TEXTS, [*TEXTS] * MOST):
        found = local.post("/v1/gate", {"questions": texts}).json["decisions"]
        assert [one["score"] for one in found] == pytest.approx(gate.score(texts), abs=1e-5)


def test_a_reload_reads_from_it_again(local, passes):
    local.service.decider.reload()
    before = local.metric(KEPT)
    assert ask(local, TEXTS[1]).status == 200 and local.metric(KEPT) == before + 1


def test_what_is_kept_is_bounded_and_of_one_use(local):
    kept = local.service.upstream.kept
    for i in range(2 * MOST):
        local.post("/v1/gate", {"questions": [f"What is the capital of place {i}?"]})
    assert len(kept._made) == MOST
    ids = next(iter(kept._made))
    assert kept.take(ids) is not None and kept.take(ids) is None


def test_other_prompts_other_models_and_other_gates_share_nothing(folder, model, gate):
    from tiny_kbm import make_folder

    with serving(folder, model=model) as server:  # the user's own words are asked: another prompt than the probe's
        assert server.service.upstream.kept is None
    with serving(gate, model=model, prompt="trained") as server:
        assert server.service.upstream.kept is None
    other = make_folder(folder.parent / "other", seed=7, initializer_range=0.3)
    with serving(folder, model=str(other), prompt="trained") as server:
        assert server.service.upstream.kept is None
