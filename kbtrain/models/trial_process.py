"""Run as a script: open a folder's tokenizer and render its chat templates, within limits of memory and time.

A process of its own, without kbtrain and as a rule without transformers: it starts in a tenth of a second. Exit status
0: nothing happened that could harm the caller, though the files may be broken; else one of the codes below, or the
signal of a library that ended the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

TOO_MUCH, PANIC, TOO_LONG = 3, 4, 5
ROOM = 3 * 2**30  # bytes beyond those of the libraries: the largest vocabularies take half a gigabyte
SECONDS = 60  # of a core
LONGEST = 1_000_000  # characters that a template may make of the short dialogues below
TEXT = "Is it so? 是吗 \u2603 42 ไทย ünïcode\n\n\t<|x|> [INST] <s> " * 40
USER = {"role": "user", "content": "Which country is Rabat in?\nAnswer: "}
DIALOGUES = (
    [USER],
    [{"role": "system", "content": "Be short."}, USER],
    [USER, {"role": "assistant", "content": "Morocco"}, USER],
)
OPTIONS = {"enable_thinking": False, "date_string": "26 Jul 2024", "bos_token": "<s>", "eos_token": "</s>"}


def limit() -> None:
    """Limit what this process takes from now on; macOS has no limit of memory, so the caller watches it there."""
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + ROOM
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def templates(folder: Path) -> list[str]:
    """Every chat template of the folder."""
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("chat_template.jinja")]
    texts += [path.read_text(encoding="utf-8") for path in folder.glob("additional_chat_templates/*.jinja")]
    with contextlib.suppress(OSError, ValueError):
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        field = config.get("chat_template") if isinstance(config, dict) else None
        entries = field if isinstance(field, list) else [{"template": field}]
        texts += [
            entry["template"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("template"), str)
        ]
    return texts


def render(template: str) -> None:
    """Render the dialogues, in an environment like that of transformers; exit where the text is too long."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **_: json.dumps(value)
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: form}
    compiled = environment.from_string(
        re.sub(r"\{%-?\s*(?:end)?generation\s*-?%\}", "", template)
    )  # a tag of transformers
    for messages in DIALOGUES:
        for added in (True, False):
            try:
                pieces = compiled.generate(messages=messages, add_generation_prompt=added, **OPTIONS)
                size = 0
                for piece in pieces:
                    size += len(piece)
                    if size > LONGEST:
                        sys.exit(TOO_LONG)
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001, S110 - the caller reports what a template cannot do
                pass


def tokenize(folder: Path) -> None:
    """Make tokens of a text."""
    if (folder / "tokenizer.json").exists():
        from tokenizers import Tokenizer

        limit()
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.decode(tokenizer.encode(TEXT).ids)
    elif any(path for pattern in ("*.model", "*.tiktoken", "vocab.*") for path in folder.glob(pattern)):
        from transformers import AutoTokenizer

        limit()
        AutoTokenizer.from_pretrained(str(folder), local_files_only=True)(TEXT)
    else:
        limit()


def attempt(work: Callable[[], None]) -> int:
    """The exit status of one part; an error that Python raises is the caller's to name."""
    try:
        work()
    except MemoryError:
        return TOO_MUCH
    except SystemExit as error:
        return int(error.code or 0)
    except Exception:  # noqa: BLE001
        return 0
    except BaseException:  # noqa: BLE001 - a panic of a library written in Rust
        return PANIC
    return 0


def main(folder: Path) -> int:
    """The exit status of the first part that could harm the caller; 0 without one."""
    import jinja2.ext
    import jinja2.sandbox  # noqa: F401 - before the limit: its memory is not a template's

    status = attempt(lambda: tokenize(folder))
    for template in () if status else templates(folder):
        status = status or attempt(lambda template=template: render(template))  # type: ignore[misc]
    return status


if __name__ == "__main__":
    code = main(Path(sys.argv[1]))
    os._exit(code)  # threads and caches of the libraries are left as they are
