"""Make the gate draft: no training, no labels; a folder that names the answering model and the signal.

It reads the first tokens of the model's greedy answer: margin, entropy, entropy of the first token. With a server's
address, the model behind it drafts, and the gate reads its top log-probabilities. Then choose a threshold with
eval/calibrate.py.

Examples:
  kbtrain run make_draft --config draft_smollm2
  kbtrain run make_draft --model Qwen/Qwen2-7B-Instruct --output runs/qwen2/draft --tokens 8
  kbtrain run make_draft --model gpt-4o-mini --output runs/mine/draft --server-url https://api.openai.com/v1
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from kbtrain.config import Config, build, run_script
from kbtrain.errors import UserError, at
from kbtrain.gates.draft import TOKENS, TOP, DraftCard, DraftOfServer, DraftServer, Signal, draft_signals
from kbtrain.io.provenance import git_state, package_versions
from kbtrain.llm.backends import LLMConfig
from kbtrain.net import LONGEST_ASKED, check_url
from kbtrain.prompts.own import Part, asked_fingerprint, read_prompts
from kbtrain.records import DtypeName
from kbtrain.training.model_card import write_made

_OF_FILE = ("server_url", "server_model", "server_endpoint", "server_key_env")  # keys that server_config gives
_WAITS = ("tries", "timeout", "patience")
_OF_SERVER = ("server_model", "server_endpoint", "server_key_env", *(f"server_{key}" for key in _WAITS))
WHAT = "Reads how sure the answering model is of the first tokens of its greedy answer; nothing is trained."


class MakeDraftConfig(Config):
    """Settings of this script."""

    model: str = Field(..., description="answering model: embedded name, folder or hub id")
    output: Path = Field(..., description="folder of the gate, e.g. RUN/draft")
    signal: Signal = Field(
        "draft_margin",
        description="the signal that decides: draft_margin, draft_entropy or first_token_entropy; all are scored",
    )
    prompts: dict[Part, Path] = Field(
        {}, description="files with your templates, as for sampling: {llm: FILE, rag: FILE, system: FILE}"
    )
    tokens: int = Field(TOKENS, ge=1, le=64, description="longest draft, in tokens")
    dtype: DtypeName = Field("auto", description="auto: chosen for the processor; stored in the folder")
    device: str = Field("auto", description="auto, cpu or cuda")

    server_config: Path | None = Field(
        None,
        description="server: file that kbtrain check-server wrote, for address, names, endpoint, key, tries and waits",
    )
    server_url: str | None = Field(None, description="server: address up to and with /v1; null: the model runs here")
    server_model: str | None = Field(None, description="server: the model's name there; null: as in model")
    server_endpoint: Literal["completions", "chat"] = Field("chat", description="server: as for sampling")
    server_key_env: str = Field("OPENAI_API_KEY", description="server: environment variable that holds the key")
    server_tries: int = Field(
        8, ge=1, description="server: number of tries for a failing request; stored in the folder"
    )
    server_timeout: float = Field(
        600.0, gt=0, description="server: seconds to wait for an answer; stored in the folder"
    )
    server_patience: float = Field(
        LONGEST_ASKED, ge=0, description="server: longest wait that the server may ask for (Retry-After), in seconds"
    )
    top: int = Field(TOP, ge=2, le=1000, description="server: log-probabilities requested at each token")

    def writes(self) -> tuple[Path, ...]:
        return (self.output,)

    @model_validator(mode="after")
    def _check_server(self) -> Self:
        if twice := sorted(self.model_fields_set & set(_OF_FILE)) if self.server_config is not None else []:
            raise ValueError(f"key '{twice[0]}': server_config gives it; remove one of the two")
        without = self.server_url is None and self.server_config is None
        if unread := sorted(self.model_fields_set & {*_OF_SERVER, "top"}) if without else []:
            raise ValueError(f"key '{unread[0]}': applies only to a server; give server_url")
        if unread := sorted(self.model_fields_set & {"dtype", "device"}) if not without else []:
            raise ValueError(f"key '{unread[0]}': applies only to a model that runs here; the server has its own")
        if self.server_url is not None:
            check_url(self.server_url, "server_url")
        return self

    def server(self) -> DraftServer | None:
        """The server as configured, by this script's keys or by the file of ``kbtrain check-server``."""
        waits: dict[str, Any] = {key: getattr(self, f"server_{key}") for key in _WAITS}
        if self.server_config is not None:
            llm = build(LLMConfig, self.server_config, {})
            if not llm.kind.server:
                raise UserError(f"{at(self.server_config)}: backend {llm.backend} is not a server")
            given = self.model_fields_set
            waits |= {key: getattr(llm, f"server_{key}") for key in _WAITS if f"server_{key}" not in given}
            return DraftServer(
                url=llm.server_url or "", name=llm.server_model or llm.model, chat=llm.server_endpoint == "chat",
                alias=llm.server_alias, key_env=llm.server_key_env, dialect=llm.dialect(), top=self.top, **waits,
            )  # fmt: skip
        if self.server_url is None:
            return None
        return DraftServer(
            url=self.server_url, name=self.server_model or self.model, chat=self.server_endpoint == "chat",
            key_env=self.server_key_env, top=self.top, **waits,
        )  # fmt: skip


def main(config: MakeDraftConfig) -> None:
    """Look at the model, or ask the server a question, and write the card."""
    prompts = read_prompts(config.prompts)
    about: dict[str, Any] = {
        "base_model": config.model,
        "signal": config.signal,
        "tokens": config.tokens,
        "run": {**git_state(), "config": config.model_dump(mode="json")},
        "versions": package_versions(),
        "label_rule": {} if prompts is None else {"own_prompts": prompts.as_record()},
    }
    server = config.server()
    if server is not None:
        gate = DraftOfServer.connected(DraftCard(**about, dtype="auto", prompt_fingerprint="", server=server))
        scores = gate.score_all(["What is the capital of France?"])  # refuses a server without top log-probabilities
        if [value for (value,) in scores.values()] == [*draft_signals((), config.top)]:
            raise UserError(f"server {server.url}: gives no log-probabilities of its first tokens; turn reasoning off")
        card = gate.card.model_copy(update={"prompt_fingerprint": gate.fingerprint()})
    else:
        from kbtrain.models.load import load_model, name_of

        model, tokenizer = load_model(config.model, config.dtype, config.device)
        card = DraftCard(**about, dtype=name_of(model.dtype), prompt_fingerprint=asked_fingerprint(tokenizer, prompts))
    write_made(config.output, card, WHAT)
    print(f"made draft (by {config.signal}) of {config.model} ({card.dtype}) -> {config.output}")


if __name__ == "__main__":
    run_script(main, MakeDraftConfig, __doc__)
