"""Tokens follow the model's probabilities, and a uniform number decides them alone."""

import numpy as np
import torch
from scipy import stats

from kbtrain.llm.base import UniformRow
from kbtrain.llm.sampler.draw import draw, filter_logits


def drawn(logits, uniforms, source=None):
    n = len(uniforms)
    source = list(range(n)) if source is None else source
    return draw(logits, torch.tensor(uniforms, dtype=torch.float64), torch.zeros(n, dtype=torch.bool), source)


def test_a_uniform_number_picks_the_token_whose_share_of_the_cdf_holds_it():
    logits = torch.log(torch.tensor([[0.2, 0.3, 0.5]]))
    found = [drawn(logits, [u]).tokens.item() for u in (0.0, 0.19, 0.21, 0.49, 0.51, 1 - 2**-53)]
    assert found == [0, 0, 1, 1, 2, 2]


def test_log_probabilities_are_those_of_log_softmax():
    torch.manual_seed(1)
    logits = torch.randn(40, 1000) * 3
    found = drawn(logits, torch.rand(40).tolist())
    expected = torch.log_softmax(logits.double(), -1)[torch.arange(40), found.tokens]
    torch.testing.assert_close(found.logprobs, expected, atol=1e-6, rtol=1e-6)


def test_draws_follow_the_probabilities_over_a_large_vocabulary():
    """Chi-square over the tokens expected often enough, the rest in one class."""
    torch.manual_seed(0)
    logits = torch.randn(1, 5000) * 3
    n = 60_000
    uniforms = np.random.default_rng(0).random(n)
    counts = np.zeros(5000)
    for chunk in np.array_split(uniforms, 6):
        tokens = drawn(logits, chunk.tolist(), [0] * len(chunk)).tokens.numpy()
        counts += np.bincount(tokens, minlength=5000)
    expected = torch.softmax(logits.double(), -1)[0].numpy() * n
    common = expected >= 20
    seen = np.append(counts[common], counts[~common].sum())
    assert stats.chisquare(seen, np.append(expected[common], expected[~common].sum())).pvalue > 1e-3


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.full((1, 600), float("-inf"))
    logits[0, [3, 299, 511]] = torch.tensor([0.0, 1.0, 2.0])
    edges = [0.0, 2**-53, 0.5, 1 - 2**-53, *np.random.default_rng(0).random(500).tolist()]
    assert set(drawn(logits, edges, [0] * len(edges)).tokens.tolist()) == {3, 299, 511}


def test_a_row_is_drawn_alike_alone_and_among_others():
    torch.manual_seed(2)
    logits, uniforms = torch.randn(50, 777), torch.rand(50).tolist()
    together = drawn(logits, uniforms).tokens
    alone = torch.cat([drawn(logits[i : i + 1], uniforms[i : i + 1]).tokens for i in range(50)])
    assert torch.equal(together, alone)


def test_greedy_rows_take_the_most_probable_token():
    torch.manual_seed(3)
    logits = torch.randn(5, 300)
    found = draw(logits, torch.full((5,), 0.999, dtype=torch.float64), torch.ones(5, dtype=torch.bool), range(5))
    assert torch.equal(found.tokens, logits.argmax(-1))


def test_top_k_and_top_p_leave_out_the_tail():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    assert torch.isfinite(filter_logits(logits, 1.0, 2, 1.0)).tolist() == [[True, True, False, False]]
    assert torch.isfinite(filter_logits(logits, 1.0, 0, 0.9)).tolist() == [[True, True, True, False]]


def test_uniform_numbers_differ_by_every_part_of_their_name_and_are_uniform():
    base = UniformRow("0", "q", "llm", 0).at(0)
    others = [UniformRow("1", "q", "llm", 0).at(0), UniformRow("0", "r", "llm", 0).at(0),
              UniformRow("0", "q", "rag", 0).at(0), UniformRow("0", "q", "llm", 1).at(0),
              UniformRow("0", "q", "llm", 0).at(1)]  # fmt: skip
    assert len({base, *others}) == 6 and UniformRow("0", "q", "llm", 0).at(0) == base
    numbers = [UniformRow("0", f"q{i}", "llm", j).at(k) for i in range(20) for j in range(20) for k in range(5)]
    assert stats.kstest(numbers, "uniform").pvalue > 1e-3


def test_lines_from_which_nobody_draws_are_passed_over():
    """More of them than are worked on at a time, before, between and after those that are asked."""
    torch.manual_seed(3)
    logits = torch.randn(100, 300)
    source = [20, 20, 21, 70]
    found = drawn(logits, [0.1, 0.8, 0.4, 0.6], source)
    assert torch.equal(found.tokens, drawn(logits[source], [0.1, 0.8, 0.4, 0.6]).tokens)
