"""From replies of the peers to a table (Markdown) and numbers (JSON)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sampling_limit import Machine, Work, byte_seconds, least_seconds, operation_seconds, operations

OURS = "kbtrain_llm"
LABELS = {
    OURS: "this sampler",
    "hf_generate": "HF generate",
    "vllm_generate": "vLLM, all at once",
    "vllm_singles": "vLLM, one question a call",
}
TARGETS = {  # times faster than a peer
    ("long", "hf_generate"): 25.0,
    ("long", "vllm_generate"): 4.0,
    ("short", "hf_generate"): 4.0,
    ("short", "vllm_generate"): 2.5,
}
HEAD = (
    "| prompts | | s a question | answers/s | tokens/s | tokens an answer | ours faster by | share of limit |\n"
    "|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Measured:
    """One setting: the replies of each peer, round by round, and what bounds this sampler."""

    setting: str
    natural_stops: bool
    replies: dict[str, list[dict[str, Any]]]
    machine: Machine
    work: Work

    def numbers(self) -> dict[str, Any]:
        """Everything that is known about this setting."""
        least = least_seconds(self.machine, self.work) / len(self.work.prompt_lengths)
        peers = {name: rates(replies, self.work.n) for name, replies in self.replies.items()}
        for row in peers.values():
            row["times_ours"] = row["seconds_a_question"] / peers[OURS]["seconds_a_question"]
            row["share_of_limit"] = least / row["seconds_a_question"]
        return {
            "setting": self.setting,
            "peers": peers,
            "limit": {
                "seconds_a_question": least,
                "operations": operations(self.machine, self.work),
                "operation_seconds": operation_seconds(self.machine, self.work),
                "byte_seconds": byte_seconds(self.machine, self.work),
            },
            "machine": asdict(self.machine),
            "work": asdict(self.work),
            "replies": self.replies,
        }


def rates(replies: list[dict[str, Any]], n: int) -> dict[str, float]:
    """Totals over the rounds, and the slowest and fastest round."""
    seconds = sum(reply["seconds"] for reply in replies)
    answers = sum(reply["n_answers"] for reply in replies)
    tokens = sum(reply["n_tokens"] for reply in replies)
    rounds = [reply["seconds"] / reply["n_answers"] * n for reply in replies]
    return {
        "seconds_a_question": seconds / answers * n,
        "slowest_round": max(rounds),
        "fastest_round": min(rounds),
        "answers_a_second": answers / seconds,
        "tokens_a_second": tokens / seconds,
        "tokens_an_answer": tokens / answers,
        "prompt_tokens": sum(reply["n_prompt_tokens"] for reply in replies) / answers * n,
    }


def check(measured: Measured) -> None:
    """All peers read the same prompts; without natural stops all wrote the same number of tokens."""
    longest = measured.work.longest
    for name, replies in measured.replies.items():
        for reply in replies:
            asked = reply["n_answers"] // measured.work.n
            wanted = sum(measured.work.prompt_lengths[:asked])
            if reply["n_prompt_tokens"] != wanted:
                raise AssertionError(f"{name} read {reply['n_prompt_tokens']} prompt tokens, not {wanted}")
            if not measured.natural_stops and reply["n_tokens"] != reply["n_answers"] * longest:
                raise AssertionError(f"{name} wrote {reply['n_tokens']} tokens to {reply['n_answers']} answers")


def report(results: list[Measured]) -> tuple[str, list[dict[str, Any]]]:
    """The printed text, and the numbers of every setting."""
    lines, after, numbers = [HEAD], [""], []
    for measured in results:
        check(measured)
        found = measured.numbers()
        numbers.append(found)
        length = sum(measured.work.prompt_lengths) / len(measured.work.prompt_lengths)
        title = f"{measured.setting}: {length:.0f} tokens, {'natural stops' if measured.natural_stops else 'no stops'}"
        for name, row in found["peers"].items():
            lines.append(_row(title if name == OURS else "", name, row))
            after += _target(measured.setting, name, row["times_ours"])
        after.append(_limit(measured, found["limit"]))
    if not any("vllm_generate" in measured.replies for measured in results):
        after.append("vLLM was not measured: no environment of it (make vllm-env)")
    return "\n".join(lines + after), numbers


def _row(title: str, name: str, row: dict[str, float]) -> str:
    faster = "" if name == OURS else f"{row['times_ours']:.1f}"
    spread = f"{row['seconds_a_question']:.2f} ({row['fastest_round']:.2f}-{row['slowest_round']:.2f})"
    cells = (
        title, LABELS[name], spread, f"{row['answers_a_second']:.1f}", f"{row['tokens_a_second']:.0f}",
        f"{row['tokens_an_answer']:.2f}", faster, f"{row['share_of_limit']:.0%}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _target(setting: str, name: str, times: float) -> list[str]:
    target = TARGETS.get((setting, name))
    if target is None:
        return []
    verdict = "met" if times >= target else "MISSED"
    return [f"{setting}: {times:.1f} times {LABELS[name]}; target {target:g}: {verdict}"]


def _limit(measured: Measured, limit: dict[str, Any]) -> str:
    machine, questions = measured.machine, len(measured.work.prompt_lengths)
    parts = ", ".join(f"{part} {seconds / questions:.3f}" for part, seconds in limit["operation_seconds"].items())
    rates = f"{machine.body_rates[0] / 1e9:.0f} decoding, {machine.body_rates[1] / 1e9:.0f} prefilling"
    return (
        f"{measured.setting}: limit {limit['seconds_a_question']:.3f} s a question = operations ({parts}) at {rates} "
        f"GFLOP/s ({machine.dtype}, {machine.threads} threads), or bytes {limit['byte_seconds'] / questions:.3f} at "
        f"{machine.bandwidth / 1e9:.0f} GB/s, whichever is more"
    )
