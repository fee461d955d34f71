"""Gates on published answers and dialogue turns: the numbers of studies/notes/evidence.md, stage by stage.

Examples:
  python studies/run_evidence.py --data $KBTRAIN_TEST_DATA
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from published.report import closing_block
from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.demo import ChainStep, follow
from kbtrain.errors import UserError
from kbtrain.io.jsonl import read_value

HERE = Path(__file__).resolve().parent
OUTCOMES = ("llm_outcomes/outcomes.jsonl", "llm_outcomes_more/outcomes.jsonl")  # three data sets each


def evidence_chain(data: Path) -> list[ChainStep]:
    """Gates on published answers (studies/notes/evidence.md) and on KETOD's turns by cross-validation."""
    corpus = ("--corpus", str(data / "passages.jsonl"))
    turns = ("--run", "runs/ketod", "--dataset", "ketod_lines", "--path", str(data / "ketod"))
    return [
        ChainStep(str(HERE / "closed_book.py"), "gates on a model's answers about songs", 5,
             ("--path", str(data / "closed_book" / "songs.jsonl"), *corpus, "--reader", "null")),
        ChainStep("collect_turns", "dialogue turns of KETOD", 0.1, turns),
        ChainStep(str(HERE / "cross_validate.py"), "gates on dialogue turns", 1, ("--turns", "runs/ketod/turns.jsonl")),
        ChainStep(str(HERE / "evidence.py"), "gates on published answers of four models", 15,
             ("--path", f"[{', '.join(str(data / name) for name in OUTCOMES)}]", *corpus)),
    ]  # fmt: skip


def run_evidence(data: Path, say: Callable[[str], None]) -> None:
    """Run :func:`evidence_chain`. Raises :class:`UserError` for a folder without its files."""
    for name in (*OUTCOMES, "closed_book/songs.jsonl", "ketod", "passages.jsonl"):
        if not (data / name).exists():
            raise UserError(f"{data / name}: not there; KBTRAIN_TEST_DATA names its folder (studies/notes/evidence.md)")
    follow(evidence_chain(data), Path("runs/evidence"), say, "evidence.md", _evidence_block)


def _evidence_block(page: Path) -> list[str]:
    return closing_block(read_value(page.with_suffix(".json")), page)


class RunEvidenceConfig(Config):
    data: Path = Field(description="folder with llm_outcomes/, closed_book/, ketod/ and passages.jsonl")


def main(config: RunEvidenceConfig) -> None:
    """Run every stage; a stage that is done is skipped by itself."""
    run_evidence(config.data, print)


if __name__ == "__main__":
    run_script(main, RunEvidenceConfig, __doc__)
