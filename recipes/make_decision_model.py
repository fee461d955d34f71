"""Make the gate decision_model: no training, no labels; a folder that names a server and what the search covers.

For each question the gate asks the server whether the answer needs retrieval: by OpenAI's Decisions or System One, or
as a chat model whose first token is yes or no. Then choose a threshold with `kbtrain run calibrate`;
recipes/train_stack.py combines it with other gates.

Examples:
  kbtrain run make_decision_model --url http://127.0.0.1:8001/v1 --name qwen2-7b --output runs/mine/decision_model \\
      --about "the staff handbook of a university library"
  kbtrain run make_decision_model --url https://api.openai.com/v1 --name gpt-4o-mini --output runs/mine/decision_model
  kbtrain run make_decision_model --url http://127.0.0.1:4000/v1 --name router --route decisions --output runs/d
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from kbtrain.config import run_script
from kbtrain.errors import UserError
from kbtrain.gates.decision_model import DecisionModel, DecisionModelCard, DecisionServer
from kbtrain.io.provenance import git_state, package_versions
from kbtrain.net import check_url
from kbtrain.training.model_card import write_made

WHAT = "Asks a server whether answering needs retrieval; nothing is trained."


class MakeDecisionModelConfig(DecisionServer):
    output: Path = Field(description="folder of the gate, e.g. RUN/decision_model")
    about: str = Field("", description="what the search covers, in one sentence for the model")

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        check_url(url, "url")
        return url

    def writes(self) -> tuple[Path, ...]:
        return (self.output,)


def main(config: MakeDecisionModelConfig) -> None:
    """Ask the server one question, and write the card."""
    run = {**git_state(), "config": config.model_dump(mode="json")}
    server = DecisionServer(**config.model_dump(include=set(DecisionServer.model_fields)))
    card = DecisionModelCard(server=server, about=config.about, run=run, versions=package_versions())
    gate = DecisionModel(card)
    (score,) = gate.score(["What is the capital of France?"])  # refuses a server that cannot be read
    if gate.spent["neither"]:
        raise UserError(f"server {config.url}: its reply begins with neither yes nor no; if it reasons, turn that off")
    write_made(config.output, card, WHAT)
    print(f"made decision_model of {config.name} by {config.route} (capital of France: {score:.2f}) -> {config.output}")


if __name__ == "__main__":
    run_script(main, MakeDecisionModelConfig, __doc__)
