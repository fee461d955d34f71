"""The commands of ``kbtrain``, each a function of its arguments; :mod:`kbtrain.cli` lists them."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kbtrain.errors import UserError
from kbtrain.runtime import scripts

T = TypeVar("T")


def finish(args: argparse.Namespace) -> None:
    from kbtrain.demo import finish_own

    finish_own(Path(args.run_folder), step, args.prices)


def fit(args: argparse.Namespace) -> None:
    from kbtrain.fit_questions import Fit, fit_questions

    fit_questions(_options(Fit, args), step)


def _options(kind: type[T], args: argparse.Namespace) -> T:
    """The dataclass of a command's options; what is not given has its default."""
    values, names = vars(args) | {"run": args.run_folder}, inspect.signature(kind).parameters
    return kind(**{name: values[name] for name in names if name in values})


def ls(args: argparse.Namespace) -> None:
    if args.copy:
        sys.stdout.write(f"{scripts.copy(args.copy[0], Path(args.copy[1]))}\n")
        return
    kinds = (args.kind,) if args.kind else ()
    sys.stdout.write("\n".join(scripts.listing(*kinds)) + "\n")


def run(args: argparse.Namespace) -> None:
    launch, arguments = launch_of(args.arguments)
    script = scripts.find(args.name, "stages", "recipes", what="stage or recipe")
    if script.suffix != ".py":
        raise UserError(f"{script}: expected a Python script (.py)")
    if launch is None:
        scripts.run(script, arguments)
    else:
        scripts.launch(script, scripts.find(launch, "launch", what="launch file"), arguments)


def launch_of(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The launch file, if ``--launch`` names one, and the script's own arguments."""
    if "--launch" not in words:
        return None, list(words)
    place = words.index("--launch")
    if len(words) == place + 1:
        raise UserError("command line: --launch: give a launch file; see 'kbtrain ls launch'")
    return words[place + 1], [*words[:place], *words[place + 2 :]]


def check_server(args: argparse.Namespace) -> None:
    from kbtrain.llm.check_server import check_server, write_config

    output = Path(args.output)
    if output.exists() and args.states is None:
        raise UserError(f"{output}: exists already; give another name by --output")
    server = check_server(args.url, args.model, args.key_env, args.timeout, args.samples, args.max_new_tokens)
    sys.stdout.write("\n".join(server.lines()) + "\n")
    if args.states is not None:
        from kbtrain.gates.probe.served import compare_server

        sys.stdout.write("\n".join(compare_server(server.server(args.timeout), args.states)) + "\n")
    if server.problem is not None and not args.allow_empty:
        raise UserError(f"server {args.url}: {server.problem}; --allow-empty writes {output} all the same")
    if output.exists():
        sys.stdout.write(f"{server.n_requests} requests; {output} stays as it is\n")
        return
    write_config(server.settings, output)
    lines = [f"{server.n_requests} requests; wrote {output}",
             f"next: kbtrain run sample --config {output} --run RUN --dry-run"]  # fmt: skip
    sys.stdout.write("\n".join(lines) + "\n")


def vllm_args(args: argparse.Namespace) -> None:
    from kbtrain.engine.vllm_args import check_version, import_path, installed_vllm, serve_flags
    from kbtrain.gate.card import CARD
    from kbtrain.gates.handles import end_token_read, layers_read
    from kbtrain.gates.probe.sampled_states import n_layers
    from kbtrain.models.embedded import cache_dir

    folders = [Path(name) for name in args.folders if (Path(name) / CARD).exists() or not _is_model(name)]
    models = [name for name in args.folders if Path(name) not in folders]
    layers = sorted(
        {layer for folder in folders for layer in layers_read(folder)}
        | {layer for model in models for layer in range(1, n_layers(model) + 1)}
    )
    end_tokens = {token for folder in folders if (token := end_token_read(folder)) is not None}
    if len(end_tokens) > 1:
        raise UserError(f"gates {', '.join(args.folders)} read states at different end tokens; they are of two models")
    installed = installed_vllm()
    if installed:
        check_version(installed[1])
    else:
        path = import_path(cache_dir())
        sys.stderr.write(f"vLLM is in another environment: let it find kbtrain there: PYTHONPATH={path}\n")
    sys.stdout.write(" ".join(serve_flags(layers, *end_tokens)) + "\n")


def _is_model(name: str) -> bool:
    """True for a model's folder, an embedded model, or the id of one on the hub."""
    from kbtrain.models.embedded import is_embedded

    on_hub = name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).parent.exists()
    return is_embedded(name) or (Path(name) / "config.json").exists() or on_hub


def demo(args: argparse.Namespace) -> None:
    from kbtrain.demo import run_demo

    run_demo(args.size, step)


def decide(args: argparse.Namespace) -> None:
    from kbtrain.gates.decide import STDIN, decisions
    from kbtrain.gates.registry import load_gate

    batches = _inputs(args)
    gate = load_gate(args.folder, args.key, args.dtype, args.device, args.revision)
    if args.threshold is None and gate.promise:
        step(f"{gate.name}: its threshold promises: {gate.promise}")
    n = 0
    for inputs in batches:
        for decided in decisions(gate, inputs, args.threshold):
            sys.stdout.write(json.dumps(decided, ensure_ascii=False) + "\n")
            sys.stdout.flush()
            n += 1
    if n == 0:
        raise UserError(f"{args.file or STDIN}: no question in it")


def _inputs(args: argparse.Namespace) -> Iterator[Iterable[Any]]:
    """Inputs of ``kbtrain decide``, in parts that are answered at once: arguments, a file, or lines as they come."""
    from kbtrain.gates.decide import STDIN, arriving, read_questions_file

    texts = [] if args.texts == ["-"] else args.texts
    if texts and args.file:
        raise UserError("command line: give texts or --file, not both")
    if texts and args.field is not None:
        raise UserError("command line: --field: names a field of JSON lines, in --file or standard input; remove it")
    if texts:
        return iter([texts])
    if args.file and args.file != "-":
        return iter([read_questions_file(Path(args.file), args.field)])
    if sys.stdin is None:
        raise UserError(f"{STDIN}: closed; give texts or --file")
    if sys.stdin.isatty():
        step("reading questions from standard input, one a line; Ctrl-D ends")
    return arriving(sys.stdin, args.field)


def serve(args: argparse.Namespace) -> None:
    from kbtrain.serve.config import serve_settings

    settings = serve_settings(args.arguments)
    from kbtrain.serve.server import run

    run(settings, step)


def mcp(args: argparse.Namespace) -> None:
    from kbtrain.serve.config import mcp_settings

    settings = mcp_settings(args.arguments)
    from kbtrain.serve.mcp_server import run

    run(settings, step)


def push(args: argparse.Namespace) -> None:
    from kbtrain.push import Push, push

    hashes = not args.no_hashes
    settings = Push(Path(args.folder), args.name, args.private, args.dry_run, args.base_model, args.license, hashes)
    sys.stdout.write("\n".join(push(settings, step)) + "\n")


def calibrate(args: argparse.Namespace) -> None:
    from kbtrain.report.traffic import calibrate_traffic, roll_back

    if args.rollback:
        sys.stdout.write(roll_back(Path(args.folder), args.key, args.dry_run) + "\n")
        return
    if args.log is None:
        raise UserError("command line: --log: name the decision log of kbtrain serve")
    from kbtrain.llm.forecast import PRICES, read_prices

    folder, prices = Path(args.folder), read_prices(getattr(args, "prices", PRICES))
    lines = calibrate_traffic(folder, Path(args.log), args.ratio, args.key, args.replace, args.dry_run, prices)
    sys.stdout.write("\n".join(lines) + "\n")


def audit(args: argparse.Namespace) -> None:
    from kbtrain.report.audit import Audit, answer_steps, audit_lines
    from kbtrain.report.traffic import roll_back

    if args.rollback:
        sys.stdout.write(roll_back(args.folder, args.key, args.dry_run) + "\n")
        return
    if args.run_folder is None:
        raise UserError("command line: --run: name a folder for the audit, such as runs/audit")
    if args.replace and not args.apply:
        raise UserError("command line: --replace: applies only with --apply; add that, or remove it")
    if "max_loss" in args and args.goal != "max_loss":
        raise UserError("command line: --max-loss: applies only with --goal max_loss; add that, or remove it")
    settings = _options(Audit, args)
    if not args.answer or args.dry_run:
        sys.stdout.write("\n".join(audit_lines(settings)) + "\n")
        return
    from kbtrain.demo import ChainStep, follow

    if not (settings.run / "questions.jsonl").exists():
        step(audit_lines(settings)[0])
    steps = answer_steps(settings)
    if not steps:
        raise UserError(
            f"{settings.folder.parent}: its answers and search cannot be repeated; run the audit without --answer"
        )
    chain = [ChainStep(name, f"{name} of the audit", 1.0, tuple(words)) for name, words in steps]
    follow(chain, settings.run, step, "samples.db", closing=lambda _: audit_lines(settings))


def value(args: argparse.Namespace) -> None:
    from kbtrain.report.traffic import value_lines

    others = [Path(folder) for folder in args.gate]
    lines = value_lines(Path(args.folder), Path(args.log), args.key, args.threshold, others)
    sys.stdout.write("\n".join(lines) + "\n")


def env(args: argparse.Namespace) -> None:
    from kbtrain.show import aligned_block

    sys.stdout.write("\n".join(aligned_block(dict((*_software(), *_machine())))) + "\n")


_SETTINGS = re.compile(r"(KBTRAIN|HF|CUDA|OMP|GOMP|RAY|TOKENIZERS)_\w+|\w+_API_KEY|DS_ACCELERATOR")


def _software() -> Iterator[tuple[str, str]]:
    """Name and value of versions, and of the variables that are set, keys without their value."""
    import platform

    from kbtrain.io.provenance import git_state, package_versions

    yield "folder", str(scripts.PACKAGE)
    yield "commit", str(git_state().get("git_commit"))
    yield "python", f"{platform.python_version()}: {sys.executable}"
    yield "system", platform.platform()
    yield from sorted(package_versions().items())
    for name in filter(_SETTINGS.fullmatch, sorted(os.environ)):
        yield name, "set" if name.endswith(("KEY", "TOKEN")) else os.environ[name]


def _machine() -> Iterator[tuple[str, str]]:
    import psutil
    import torch

    from kbtrain.models import embedded

    yield "processor", f"{psutil.cpu_count(logical=False)} cores; {torch.backends.cpu.get_cpu_capability()}"
    memory = psutil.virtual_memory()
    yield "memory", f"{memory.total / 2**30:.1f} GiB, {memory.available / 2**30:.1f} free"
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    yield "GPUs", ", ".join(f"{gpu.name} of {gpu.total_memory / 2**30:.1f} GiB" for gpu in gpus) or "none"
    ready = [name for name in embedded.EMBEDDED if embedded.is_ready(name)]
    yield "cache", f"{embedded.cache_dir()}: {', '.join(ready) or 'no model yet'}"


def list_models(args: argparse.Namespace) -> None:
    from kbtrain.models import embedded

    for name, model in embedded.EMBEDDED.items():
        state = str(embedded.folder_of(name)) if embedded.is_ready(name) else "not fetched"
        sys.stdout.write(f"{name}  {model.about}, {model.licence}  [{state}]\n")


def model(args: argparse.Namespace) -> None:
    from kbtrain.models import embedded

    if args.fetch:
        folder = embedded.path_of(args.name, say=lambda message: step(f"{message} ..."))
        sys.stdout.write(f"{args.name} is in {folder}\n")
        return
    folder = embedded.folder_of(args.name)
    if not embedded.is_ready(args.name):
        raise UserError(f"{args.name} is not fetched yet; run: kbtrain models get {args.name}")
    sys.stdout.write(f"{folder}\n")


def step(message: str) -> None:
    """One line of progress on stderr (stdout is for results)."""
    sys.stderr.write(f"{scripts.as_commands(message)}\n")
    sys.stderr.flush()
