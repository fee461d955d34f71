"""Gates on the Hugging Face hub: the folder of a repository's gate, and the hub's refusals in one line.

The cache is the hub client's own (``HF_HOME``); ``HF_ENDPOINT`` and ``HF_HUB_OFFLINE`` hold as in any of its programs.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from kbtrain.errors import UserError, never_show
from kbtrain.gate.card import CARD, README
from kbtrain.gate.trained_on import TRAINED_ENTITIES, TRAINED_ON
from kbtrain.net import key_from_environment

TOKEN = "HF_TOKEN"  # noqa: S105 - the name of a variable
# Names of files that gates are opened from, in their folder or one below it; nothing else is sent or fetched.
FILES = (
    *(CARD, README, TRAINED_ON, TRAINED_ENTITIES, "*.safetensors", "model.safetensors.index.json"),
    *("config.json", "generation_config.json", "adapter_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "sentencepiece.bpe.model", "spiece.model"),
    *("probe.json", "tokens.json"),
)
PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".dill", ".npy", ".npz"})
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_name(place: Path | str) -> bool:
    """True for ``USER/NAME`` where neither that nor ``USER`` is a folder here: ``runs/kbm`` means this machine."""
    text = str(place)
    return bool(_NAME.fullmatch(text)) and not Path(text).exists() and not Path(text).parent.is_dir()


def check_name(name: str) -> None:
    """Raise :class:`UserError` for what cannot be a repository's name."""
    if not _NAME.fullmatch(name) or ".." in name or "--" in name or name.endswith((".git", ".ipynb", "-", ".")):
        raise UserError(f"'{name}': no name of a repository on the hub; expected USER/NAME (letters, digits, ., _, -)")


def local_folder(
    place: Path | str,
    revision: str | None = None,
    more: Callable[[], Iterable[str]] = tuple,
    check: Callable[[Path], None] = lambda folder: None,
) -> Path:
    """A gate's folder as given; for ``USER/NAME`` that in the hub client's cache, where what is missing is downloaded.

    ``revision``: branch, tag or commit; None: the main branch. Without network the cached one is taken. ``more``: names
    of files that are fetched beside :data:`FILES`, asked for only then; ``check``: of each gate's folder that was
    fetched. Raises :class:`UserError`: no such repository or revision, no access, a pickle in it, no gate in it.
    """
    name = str(place)
    if not is_hub_name(place):
        if revision is not None:
            raise UserError(
                f"revision '{revision}': '{name}' is read from this machine, not from the hub; remove the revision"
            )
        return Path(place)
    from huggingface_hub import snapshot_download

    check_name(name)
    with hub_errors(name, revision), quiet():
        hub_token = token()
        names = sorted(_list_files(name, revision, hub_token))
        if pickle := pickle_in(names):
            raise UserError(f"{name}: {pickle} is a pickle, which can run code; kbtrain reads safetensors only")
        if names and CARD not in names:
            raise UserError(f"{name}: no {CARD} in it, so it is not a gate of kbtrain")
        patterns = [pattern for file in (*FILES, *more()) for pattern in (file, f"*/{file}")]
        folder = Path(snapshot_download(name, revision=revision, token=hub_token, allow_patterns=patterns))
    for card in folder.rglob(CARD):
        check(card.parent)
    return folder


def _list_files(name: str, revision: str | None, hub_token: str | None) -> list[str]:
    """Files of a repository; none where the hub cannot be asked, as the cache may hold what is wanted."""
    import httpx2
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        # asked once; a tree would be asked for again and again, half a minute long, before the cache is looked at
        siblings = HfApi(token=hub_token).model_info(name, revision=revision).siblings
        return [sibling.rfilename for sibling in siblings or ()]
    except HfHubHTTPError as error:
        if error.response.status_code < 500:
            raise
    except (ConnectionError, httpx2.TransportError):
        pass
    return []


def pickle_in(files: Iterable[str]) -> str | None:
    """The first file whose name says that it is a pickle."""
    return next((file for file in files if PurePosixPath(file).suffix.lower() in PICKLES), None)


def token() -> str | None:
    """The hub's token from ``HF_TOKEN``, else of its own login; it is struck from every message from now on."""
    from huggingface_hub import get_token

    hub_token = key_from_environment(TOKEN) or get_token()
    if hub_token:
        never_show(hub_token)
    return hub_token


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress the client's bars and its advice to log in."""
    utils: Any = import_module("huggingface_hub.utils")  # its types name only a part of it
    level, has_bars = utils.logging.get_verbosity(), not utils.are_progress_bars_disabled()
    utils.logging.set_verbosity_error()
    utils.disable_progress_bars()
    try:
        yield
    finally:
        utils.logging.set_verbosity(level)
        if has_bars:
            utils.enable_progress_bars()


@contextlib.contextmanager
def hub_errors(name: str, revision: str | None = None) -> Iterator[None]:
    """Turn what the hub's client raises about a repository into one line. Raises :class:`UserError`."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.RevisionNotFoundError:
        raise UserError(f"{name}: no revision '{revision}' on the hub; give a branch, a tag or a commit") from None
    except errors.GatedRepoError:
        raise UserError(f"{name}: its owner grants access on the hub; ask there, and set {TOKEN}") from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"{name}: no such folder here, and no repository on the hub that this token may read ({TOKEN})"
        ) from None
    except errors.LocalEntryNotFoundError:
        raise UserError(f"{name}: the hub cannot be reached, and its cache here has no complete copy of it") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        refusals = dict.fromkeys((401, 403), f"refused (status {status}); set {TOKEN} to a token that may do this")
        refusals[429] = "asks to wait (status 429); try again later"
        refusal = refusals.get(status, f"answered with status {status}; try again later")
        raise UserError(f"{name}: the hub {refusal}") from None
    except (httpx2.HTTPError, ConnectionError, TimeoutError) as error:
        raise UserError(f"{name}: the hub cannot be reached ({type(error).__name__})") from None
    except (ValueError, KeyError) as error:  # the client reads answers as they come
        raise UserError(f"{name}: the hub's answer is not understood ({str(error).splitlines()[0][:120]})") from None
