"""Sampled answers: frequencies, ends of answers, batches, memory errors, resuming."""

import pytest
import torch
from scipy import stats
from support.drawn_tokens import DrawnTokens

from kbtrain.errors import UserError
from kbtrain.llm.base import AnswerRequest, Sampling
from kbtrain.llm.sampler.sampler import Stopper
from kbtrain.llm.transformers_llm import TransformersLLM
from kbtrain.models.batching import BatchLimits
from kbtrain.models.load import choose_dtype


@pytest.fixture
def make_llm(make_model, tokenizer):
    def make(limits=None, **sampling):
        settings = {"max_new_tokens": 6, "stop": (), "max_prompt_tokens": 100, **sampling}
        model = make_model("llama", initializer_range=0.3)
        return TransformersLLM("tiny", model, tokenizer, Sampling(**settings), limits)

    return make


def answers(llm, asks, done=frozenset()):
    return [s for group in llm.answer(asks, done) for s in group]


def test_first_and_second_token_frequencies_match_the_models_probabilities(make_llm, question):
    """Chi-square of 6,000 two-token answers against probabilities from plain forward passes."""
    llm = make_llm(max_new_tokens=2, limits=BatchLimits(rows=2000))
    llm.model.generation_config.eos_token_id = llm.model.config.eos_token_id = None
    llm._sampler.stopper.eos = frozenset()
    n = 6_000
    ask = AnswerRequest(question("q", text="a"), "llm", None, n=n, greedy=False)
    ids = list(llm._prompt(ask)[0].ids)
    observer = DrawnTokens()
    llm.observe(observer)
    answers(llm, [ask])
    drawn = list(observer.tokens.values())
    first = torch.softmax(llm.model(torch.tensor([ids])).logits[0, -1].double(), -1).detach()
    assert agreement(torch.tensor([t[0] for t in drawn]), first) > 1e-3
    top = int(first.argmax())
    second = torch.softmax(llm.model(torch.tensor([[*ids, top]])).logits[0, -1].double(), -1).detach()
    assert agreement(torch.tensor([t[1] for t in drawn if t[0] == top]), second) > 1e-3


def agreement(tokens, probabilities):
    """P-value of the tokens' counts under the probabilities; rare tokens count as one."""
    expected = probabilities * len(tokens)
    common = expected >= 10
    seen = torch.bincount(tokens, minlength=len(expected)).double()
    observed = [*seen[common].tolist(), float(seen[~common].sum())]
    wanted = [*expected[common].tolist(), float(expected[~common].sum())]
    assert len(observed) > 5
    return stats.chisquare(observed, wanted, sum_check=False).pvalue


def test_every_end_token_of_the_generation_config_ends_an_answer(make_llm, question):
    llm = make_llm(max_new_tokens=30)
    llm._sampler.stopper.eos = frozenset(range(0, 150))
    found = answers(llm, [AnswerRequest(question("q"), "llm", None, n=20)])[0]
    assert {s.finish for s in found.samples} >= {"eos"}
    assert all(s.n_tokens == 30 for s in found.samples if s.finish == "length")


def test_a_stop_string_ends_the_answer_and_is_cut_off(make_llm, question):
    llm = make_llm(max_new_tokens=40, stop=("e", "in th"))
    found = answers(llm, [AnswerRequest(question("q"), "llm", None, n=40)])[0]
    stopped = [s for s in found.samples if s.finish == "stop"]
    assert stopped and all("e" not in s.text and "in th" not in s.text for s in found.samples)
    assert all(s.n_tokens < 40 for s in stopped)


@pytest.mark.parametrize("stop", ["\N{FULLWIDTH QUESTION MARK}", "\N{OCTAGONAL SIGN}", "b\N{EM DASH}"])
def test_a_stop_string_whose_last_character_is_several_tokens_ends_the_answer(make_model, tokenizer, stop):
    tokens = tokenizer(f"ab{stop}")["input_ids"]
    assert len(tokenizer(stop[-1])["input_ids"]) > 1
    stopper = Stopper(make_model("llama"), tokenizer, (stop,))
    ends = [stopper.finish(tokens[: i + 1]) for i in range(len(tokens))]
    assert ends == [None] * (len(tokens) - 1) + ["stop"]
    assert stopper.read(tokens, "length").text == f"ab{stop}"[: -len(stop)]


def test_log_probability_is_the_sum_over_the_answers_tokens(make_llm, question):
    llm = make_llm(max_new_tokens=4)
    llm._sampler.stopper.eos = frozenset()
    ask = AnswerRequest(question("q"), "llm", None, n=3)
    observer = DrawnTokens()
    llm.observe(observer)
    found = answers(llm, [ask])[0]
    ids = list(llm._prompt(ask)[0].ids)
    for sample in found.samples:
        tokens = observer.tokens["q", sample.index]
        logits = llm.model(torch.tensor([ids + tokens])).logits.detach()[0, len(ids) - 1 : -1].double()
        expected = torch.log_softmax(logits, -1)[torch.arange(4), torch.tensor(tokens)].sum()
        assert sample.logprob == pytest.approx(float(expected), abs=1e-3)


def test_a_resumed_run_gives_the_same_answers_whatever_was_done_before(make_llm, question):
    llm = make_llm(limits=BatchLimits(rows=20, window=8))
    asks = [AnswerRequest(question(f"q{i}", text="so " * (i % 4) + "?"), "llm", None, n=4) for i in range(20)]
    whole = {s.question_id: s for s in answers(llm, asks)}
    done = {(f"q{i}", "llm") for i in (0, 3, 4, 5, 11, 19)}
    rest = answers(llm, asks, done)
    assert {s.question_id for s in rest} == set(whole) - {key for key, _ in done}
    assert all(whole[s.question_id] == s for s in rest)


def test_evidence_that_does_not_fit_is_cut_from_its_tail_and_counted(make_llm, question, tokenizer):
    llm = make_llm(max_prompt_tokens=160)
    evidence = "first fact. " + "filler " * 60
    found = answers(llm, [AnswerRequest(question("q"), "rag", evidence, n=1)])[0]
    prompt, cut = llm._prompt(AnswerRequest(question("q"), "rag", evidence, n=1))
    assert found.evidence_cut == cut > 0 and len(prompt.ids) <= 160
    assert "first fact." in tokenizer.decode(prompt.ids)
    assert tokenizer.decode(prompt.ids).endswith("answer: ")


def test_a_question_longer_than_the_room_is_one_line(make_llm, question):
    llm = make_llm(max_prompt_tokens=40)
    with pytest.raises(UserError, match=r"question 'long': prompt of .* tokens without evidence; room for 40"):
        answers(llm, [AnswerRequest(question("long", text="word " * 60), "llm", None, n=1)])


def test_fp16_is_refused_to_qwen2_unless_insisted():
    with pytest.raises(UserError, match="Qwen2 overflows"):
        choose_dtype("fp16", "cpu", "qwen2")
    assert choose_dtype("fp16-anyway", "cpu", "qwen2") is torch.float16
    assert choose_dtype("fp16", "cpu", "llama") is torch.float16
    with pytest.raises(UserError, match="unknown 'fp8'"):
        choose_dtype("fp8", "cpu", "llama")


def test_precision_on_a_cpu_follows_its_instructions_and_never_its_neighbours(monkeypatch):
    import kbtrain.models.load as precision

    for avx, amx, chosen in ((True, False, "bf16"), (False, True, "bf16"), (False, False, "fp32")):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda found=avx: found)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda found=amx: found)
        assert choose_dtype("auto", "cpu", "llama") is precision.NAMES[chosen]
