"""Bills worked by hand, and break-even ratios at which they really are equal."""

from pathlib import Path

import numpy as np
import pytest

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.evaluation.cost import GateCost, Prices, Usage, asking_of, bill, gate_bill, thousand_questions
from kbtrain.evaluation.scores import StoredScores

PRICES = Prices(search=0.01, million_tokens_in=1.0, million_tokens_out=2.0, machine_hour=3.6, search_seconds=0.5,
                seconds_per_1000_tokens_in=0.1, seconds_per_1000_tokens_out=10.0)  # fmt: skip
USED = Usage(np.array([100.0, 100]), np.array([10.0, 30]), np.array([1000.0, 3000]), np.array([20.0, 20]))


def test_a_bill_worked_by_hand():
    found = bill(USED, np.array([0.0, 1.0]), PRICES, GateCost(0.2))
    assert found.searches == pytest.approx(0.005)
    assert found.tokens == pytest.approx((1550 * 1.0 + 15 * 2.0) / 1e6)
    assert found.gate == pytest.approx(0.2 * 3.6 / 3600)
    assert found.money == pytest.approx(found.searches + found.tokens + found.gate)
    assert found.seconds == pytest.approx(0.25 + 1.55 * 0.1 + 0.015 * 10 + 0.2)


def test_a_thousand_questions_worked_by_hand():
    """One of two questions is searched for: 100 and 3,000 prompt tokens, 10 and 20 completion tokens."""
    found = bill(USED, np.array([0.0, 1.0]), PRICES, GateCost(0.2, (50.0, 5.0)))
    assert (found.searched, found.prompt_tokens, found.completion_tokens) == (0.5, 1600.0, 20.0)
    text = thousand_questions(USED, np.array([0.0, 1.0]), PRICES, GateCost(0.2))
    # 0.25 s searching, 1.55 * 0.1 s reading, 0.015 * 10 s writing, 0.2 s for the gate; 5 + 1.55 + 0.03 + 0.2 USD
    assert text == (
        "A thousand questions: 500 searches, 1,550,000 prompt and 15,000 completion tokens, 755 ms a question, 6.78 "
        "USD; always searching: 1,000 searches, 2,000,000 prompt and 20,000 completion tokens, 900 ms a question, "
        "12.04 USD (stored answers' tokens; times and prices of the price list)."
    )
    unknown = Usage(np.array([100.0, 0]), np.array([10.0, 0]), np.array([1000.0, 0]), np.array([20.0, 0]))
    assert thousand_questions(unknown, np.array([0.0, 1.0]), PRICES) == (
        "A thousand questions: 500 searches. Tokens, time and money are not known: the store has no tokens of the "
        "answers to 1 of 2 questions."
    )


def test_a_gate_that_asks_a_server_is_paid_by_tokens_and_not_by_the_machine():
    paid = (500.0, 80.0)
    found = bill(USED, np.array([0.0, 1.0]), PRICES, GateCost(0.2, paid))
    assert found.gate == pytest.approx((500 * 1.0 + 80 * 2.0) / 1e6)
    assert found.money == pytest.approx(found.searches + found.tokens + found.gate)
    assert found.seconds == bill(USED, np.array([0.0, 1.0]), PRICES, GateCost(0.2)).seconds  # it is waited for
    beside = gate_bill("gate", USED, np.array([1.0, 0.0]), 0.5, PRICES, GateCost(0.3, paid))
    assert beside.break_even is not None
    always = bill(USED, np.ones(2), PRICES)
    assert bill(USED, np.full(2, beside.break_even), PRICES, GateCost(0.3, paid)).money == pytest.approx(always.money)


def test_a_pass_that_the_answer_goes_on_from_costs_where_a_search_follows():
    """4 s of two questions, one of them searched for: 2 s in the mean; the break-even ratio pays for its own."""
    found = gate_bill("gate", USED, np.array([1.0, 0.0]), 0.5, PRICES, GateCost(4.0, within_answer=True))
    assert found.bill == bill(USED, np.array([1.0, 0.0]), PRICES, GateCost(2.0))
    assert found.break_even is not None and 0 < found.break_even < 1
    at_even = bill(USED, np.full(2, found.break_even), PRICES, GateCost(4.0 * found.break_even))
    assert at_even.money == pytest.approx(bill(USED, np.ones(2), PRICES).money)
    never = gate_bill("gate", USED, np.zeros(2), 0.5, PRICES, GateCost(4.0, within_answer=True))
    assert never.break_even == found.break_even  # of one question that is asked about


def test_a_gate_that_is_asked_after_the_search_saves_none():
    retrieve = np.array([0.0, 1.0])
    before, after = (bill(USED, retrieve, PRICES, GateCost(0.2, after_search=late)) for late in (False, True))
    assert after.searches == pytest.approx(PRICES.search) and before.searches == pytest.approx(PRICES.search / 2)
    assert (after.tokens, after.gate) == (before.tokens, before.gate)
    assert after.seconds - before.seconds == pytest.approx(PRICES.search_seconds / 2)
    never = gate_bill("gate", USED, np.zeros(2), 0.5, PRICES, GateCost(0.0, after_search=True))
    always = bill(USED, np.ones(2), PRICES)
    reading = bill(USED, np.zeros(2), PRICES).tokens
    assert never.saved == pytest.approx((always.tokens - reading) / always.money)  # the tokens of the passages alone
    late = gate_bill("gate", USED, retrieve, 0.5, PRICES, GateCost(0.003, after_search=True))
    assert late.break_even == pytest.approx(1 - late.bill.gate / (always.tokens - reading))
    assert asking_of(StoredScores(Path("scores")), "retriever_score").after_search
    assert "questions: 1,000 searches" in thousand_questions(USED, retrieve, PRICES, GateCost(0.0, after_search=True))


def test_at_the_break_even_ratio_the_gate_costs_as_much_as_all_rag():
    found = gate_bill("gate", USED, np.array([1.0, 0.0]), 0.5, PRICES, GateCost(0.3))
    assert found.break_even is not None and found.break_even_seconds is not None
    always = bill(USED, np.ones(2), PRICES)
    assert bill(USED, np.full(2, found.break_even), PRICES, GateCost(0.3)).money == pytest.approx(always.money)
    assert bill(USED, np.full(2, found.break_even_seconds), PRICES, GateCost(0.3)).seconds == pytest.approx(
        always.seconds
    )
    assert found.saved == pytest.approx(1 - found.bill.money / always.money)


def test_a_gate_slower_than_a_search_never_pays_in_time():
    slow = gate_bill("gate", USED, np.array([1.0, 0.0]), 0.5, PRICES, GateCost(0.3, alone=0.9))
    fast = gate_bill("gate", USED, np.array([1.0, 0.0]), 0.5, PRICES, GateCost(0.3))
    assert slow.bill.money == fast.bill.money and slow.break_even == fast.break_even  # a busy machine is paid for
    assert slow.bill.seconds == pytest.approx(fast.bill.seconds + 0.6)
    assert (slow.break_even_seconds or 0.0) < (fast.break_even_seconds or 0.0)
    found = gate_bill("gate", USED, np.zeros(2), 0.5, PRICES, GateCost(100.0))
    assert found.break_even_seconds is not None and found.break_even_seconds < 0
    assert found.saved_seconds is not None and found.saved_seconds < 0


def test_where_retrieval_costs_nothing_there_is_no_break_even_and_it_says_so():
    free = PRICES.model_copy(update={"search": 0.0, "million_tokens_in": 0.0, "million_tokens_out": 0.0})
    found = gate_bill("gate", USED, np.zeros(2), 0.5, free, GateCost(0.1))
    assert found.break_even is None and found.saved is None
    assert "nothing to save" in found.reasons["break_even"]


def test_a_price_file_is_checked(tmp_path):
    path = tmp_path / "prices.yaml"
    path.write_text("serch: 1\n")
    with pytest.raises(UserError, match=r"prices.yaml:1: unknown key 'serch'; did you mean 'search'\?"):
        build(Prices, path, {})
