"""Make the gates p_yes, draft and server: no training, no labels; folders that name the answering model and the signal.

p_yes asks the model if it can answer (first token, internal confidence, the question's perplexity: one forward pass;
the question is kbtrain's, own prompts are noted for the answers alone); draft reads the first tokens of its greedy
answer (margin, entropy, entropy of the first token); server asks both of a server that gives top log-probabilities.
Choose thresholds with eval/calibrate.py afterwards.

Examples:
  python recipes/make_untrained.py --config recipes/configs/untrained_smollm2.yaml
  python recipes/make_untrained.py --model Qwen/Qwen2-7B-Instruct --output runs/qwen2 --gates "[draft]" --tokens 8
  python recipes/make_untrained.py --model gpt-4o-mini --output runs/mine --gates "[server]" \\
    --server-url https://api.openai.com/v1
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from kbtrain.config import Config, build, run_script
from kbtrain.errors import UserError
from kbtrain.gates.untrained.draft import TOKENS
from kbtrain.gates.untrained.make import SIGNALS, WHAT, Name, cards_of_model, with_server_prompts
from kbtrain.gates.untrained.server import TOP, ServerCard
from kbtrain.io.provenance import git_state, package_versions
from kbtrain.llm.backends import LLMConfig
from kbtrain.net import LONGEST_ASKED, check_url
from kbtrain.prompts.own import Part, read_prompts
from kbtrain.records import DtypeName
from kbtrain.training.model_card import write_made

_OF_FILE = ("server_url", "server_model", "server_endpoint", "server_key_env")  # keys that server_config gives


class MakeUntrainedConfig(Config):
    """Settings of this script."""

    model: str = Field(..., description="answering model: embedded name, folder or hub id")
    output: Path = Field(..., description="run folder; each gate goes into a folder of its name there")
    gates: tuple[Name, ...] = Field(("p_yes", "draft"), min_length=1, description="p_yes, draft, server")
    signals: dict[Name, str] = Field(
        {"p_yes": "p_yes", "draft": "draft_margin", "server": "server_draft_margin"},
        description="the signal that decides; all others are scored beside it",
    )
    prompts: dict[Part, Path] = Field(
        {}, description="the product's templates in files, as at sampling: {llm: FILE, rag: FILE, system: FILE}"
    )
    tokens: int = Field(TOKENS, ge=1, le=64, description="tokens of a draft")
    dtype: DtypeName = Field("auto", description="auto: by the processor; noted in the folder")
    device: str = Field("auto", description="auto, cpu or cuda")

    server_config: Path | None = Field(
        None, description="server: file that kbtrain check-server wrote, in place of address, name, endpoint and key"
    )
    server_url: str | None = Field(None, description="server: address up to and with /v1")
    server_model: str | None = Field(None, description="server: the model's name there; null: as in model")
    server_endpoint: Literal["completions", "chat"] = Field("chat", description="server: as for sampling")
    server_key_env: str = Field("OPENAI_API_KEY", description="server: environment variable that holds the key")
    server_tries: int = Field(8, ge=1, description="server: tries of a request that fails; noted in the folder")
    server_timeout: float = Field(600.0, gt=0, description="server: seconds to wait for an answer; noted in the folder")
    server_patience: float = Field(LONGEST_ASKED, ge=0, description="server: seconds it may ask to wait (Retry-After)")
    top: int = Field(TOP, ge=2, le=1000, description="server: log-probabilities asked for at each token")

    def writes(self) -> tuple[Path, ...]:
        return (self.output,)

    @model_validator(mode="after")
    def _check_server(self) -> Self:
        if ("server" in self.gates) != (self.server_url is not None or self.server_config is not None):
            raise UserError("key 'server_url': the gate 'server' needs an address, the others none")
        twice = sorted(self.model_fields_set & set(_OF_FILE)) if self.server_config is not None else []
        if twice:
            raise ValueError(f"key '{twice[0]}': server_config gives it; leave one of the two out")
        unmade = sorted(set(self.signals) - set(self.gates)) if "signals" in self.model_fields_set else []
        if unmade:
            raise ValueError(f"key 'signals': gate '{unmade[0]}' is not made; name it in gates, or leave it out")
        for key, gates_of_key in (("tokens", {"draft", "server"}), ("server_model", {"server"}), ("top", {"server"})):
            if key in self.model_fields_set and not gates_of_key & set(self.gates):
                raise ValueError(
                    f"key '{key}': counts for {' and '.join(sorted(gates_of_key))} alone; name one in gates"
                )
        if self.server_url is not None:
            check_url(self.server_url, "server_url")
        return self


def main(config: MakeUntrainedConfig) -> None:
    """Check the signals, look at the model, write the cards."""
    signals = {gate: config.signals.get(gate, SIGNALS[gate][0]) for gate in config.gates}
    for gate, signal in signals.items():
        if signal not in SIGNALS[gate]:
            raise UserError(f"key 'signal': unknown '{signal}'; valid: {', '.join(SIGNALS[gate])}")
    prompts = read_prompts(config.prompts)
    about: dict[str, Any] = {
        "base_model": config.model,
        "run": {**git_state(), "config": config.model_dump(mode="json")},
        "versions": package_versions(),
        "label_rule": {} if prompts is None else {"own_prompts": prompts.as_record()},
    }
    opened = [gate for gate in config.gates if gate != "server"]
    cards = cards_of_model(signals, about, prompts, config.tokens, config.dtype, config.device) if opened else {}
    if "server" in signals:
        cards["server"] = with_server_prompts(server_card(config, signals["server"], about), prompts)
    for gate, card in cards.items():
        write_made(config.output / gate, card, WHAT[gate])
    names = ", ".join(f"{gate} (by {signal})" for gate, signal in signals.items())
    print(f"made {names} of {config.model} ({next(iter(cards.values())).dtype}) -> {config.output}")


def server_card(config: MakeUntrainedConfig, signal: str, about: Mapping[str, Any]) -> ServerCard:
    """The server's card as configured, by this script's keys or by the file of ``kbtrain check-server``."""
    server: dict[str, Any] = {
        "url": config.server_url, "served": config.server_model or config.model,
        "chat": config.server_endpoint == "chat", "key_env": config.server_key_env,
    }  # fmt: skip
    if config.server_config is not None:
        llm = build(LLMConfig, config.server_config, {})
        server = {
            "url": llm.server_url, "served": llm.server_model or llm.model,
            "chat": llm.server_endpoint == "chat", "key_env": llm.server_key_env, "dialect": llm.dialect(),
        }  # fmt: skip
    return ServerCard(
        **about, **server, signal=signal, prompt_fingerprint="", tokens=config.tokens, top=config.top,
        tries=config.server_tries, timeout=config.server_timeout, patience=config.server_patience,
    )  # fmt: skip


if __name__ == "__main__":
    run_script(main, MakeUntrainedConfig, __doc__)
