"""The remaining time of a sampling follows from the tokens that are left, not from the share of finished questions."""

from __future__ import annotations

import pytest

from kbtrain.llm.base import AnswerRequest
from kbtrain.llm.forecast import RemainingTime
from kbtrain.records import GREEDY, Question, Sample, SampleSet

READ, DRAWN, PROMPT = 0.004, 0.01, 0.2  # seconds of a token read, of a token drawn, and of a prompt


def requests() -> list[AnswerRequest]:
    """200 training questions with ten answers, 400 test questions with the greedy one; passages of unequal lengths."""
    found = []
    for number in range(600):
        split = "train" if number < 200 else "test"
        question = Question(f"q{number}", "Where is the town?" * (1 + number % 3), ("Peru",), split, "t")  # type: ignore[arg-type]
        for condition, evidence in (("llm", None), ("rag", "A town in Peru. " * (20 + number % 40))):
            found.append(AnswerRequest(question, condition, evidence, 10 if split == "train" else 0))  # type: ignore[arg-type]
    return found


def tokens(request: AnswerRequest) -> float:
    return (len(request.question.text) + len(request.evidence or "")) / 4


def answered(request: AnswerRequest) -> SampleSet:
    drawn = tuple(Sample(i, "Peru", 7 + i % 3, "eos", -1.0) for i in range(request.n))
    return SampleSet(request.question.id, request.condition, drawn, Sample(GREEDY, "Peru", 8, "eos", -1.0), 9)


def batches() -> list[list[AnswerRequest]]:
    """As the sampler makes them: many answers first, then the longest prompts; at most 120 answers."""
    ordered = sorted(requests(), key=lambda request: (-request.n, -tokens(request)))
    train, test = (([r for r in ordered if bool(r.n) == many]) for many in (True, False))
    return [train[i : i + 10] for i in range(0, len(train), 10)] + [test[i : i + 40] for i in range(0, len(test), 40)]


def seconds_of(batch: list[AnswerRequest]) -> float:
    drawn = sum(answer.n_tokens for r in batch for answer in (*answered(r).samples, answered(r).greedy) if answer)
    return READ * sum(map(tokens, batch)) + DRAWN * drawn + PROMPT * len(batch)


def test_the_estimate_is_near_where_the_share_of_questions_is_off_by_far() -> None:
    now, all_batches = [100.0], batches()
    remaining = RemainingTime(requests(), lambda: now[0])
    now[0] += 50  # the model is opened
    remaining.start()
    assert remaining.seconds() is None
    total, passed, done, by_count = sum(map(seconds_of, all_batches)), 0.0, 0, []
    for number, batch in enumerate(all_batches, 1):
        now[0] += seconds_of(batch)
        passed, done = passed + seconds_of(batch), done + len(batch)
        remaining.add([answered(request) for request in batch])
        assert (remaining.seconds() is None) == (number < 6)  # below a twentieth of the prompts
        if 6 <= number < len(all_batches):
            ratio = (remaining.seconds() or 0.0) / (total - passed)
            assert 0.5 < ratio < 2 and (number < 45 or 0.8 < ratio < 1.25)  # 40 batches of many answers, then others
            by_count.append((1200 - done) * passed / done / (total - passed))
    assert max(by_count) > 3
    assert remaining.seconds() == pytest.approx(0, abs=1e-6)


def test_stored_questions_are_not_counted_and_none_is_left_at_the_end() -> None:
    now = [0.0]
    some = requests()[:5]
    remaining = RemainingTime(some[2:], lambda: now[0])
    remaining.start()
    for request in some[2:4]:
        now[0] += 6
        remaining.add([answered(request)])
    left = remaining.seconds()
    assert left is not None and left > 1
    now[0] += 1
    assert remaining.seconds() == pytest.approx(left - 1)  # counted down
    now[0] += 99
    assert (remaining.seconds() or 0) > 3 * left  # a batch of 100 s: all is slower than it was
    remaining.add([answered(some[4])])
    assert remaining.seconds() == pytest.approx(0)


def test_batches_without_a_measured_second_give_no_negative_time() -> None:
    remaining = RemainingTime(requests()[:3], lambda: 5.0)
    for request in requests()[:2]:
        remaining.add([answered(request)])
    assert remaining.seconds() == 0
