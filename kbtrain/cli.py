"""The command ``kbtrain``: what an installed package needs outside of Python.

Examples:
  kbtrain models list
  kbtrain models get smollm2-135m-instruct
  kbtrain models path smollm2-135m-instruct
  kbtrain compare runs/demo runs/demo-full
  kbtrain plan recipes/configs/kbm_qwen2_7b.yaml --gpus 4 --gpu-memory 80 --examples 10000 --tokens 600 --rate 120
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from kbtrain import __version__
from kbtrain.errors import UserError
from kbtrain.models import embedded


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"command line: {message}; see '{self.prog} --help'")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a user's error is one line on stderr and exit code 2."""
    try:
        args = _parser().parse_args(argv)
        args.run(args)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted: run the same command again to go on\n")
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    summary, _, examples = (__doc__ or "").partition("\n")
    layout = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="kbtrain", description=summary, epilog=examples.strip(), formatter_class=layout)
    parser.add_argument("--version", action="version", version=f"kbtrain {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    models = commands.add_parser("models", help="models that kbtrain can fetch by itself")
    actions = models.add_subparsers(metavar="ACTION", required=True)
    actions.add_parser("list", help="their names and whether they are here").set_defaults(run=_list)
    for action, run, text in (("get", _get, "fetch and convert one, once"), ("path", _path, "print its folder")):
        sub = actions.add_parser(action, help=text)
        sub.add_argument("name", metavar="NAME", help=f"one of: {', '.join(embedded.EMBEDDED)}")
        sub.set_defaults(run=run)
    compare = commands.add_parser("compare", help="two finished evaluations, gate by gate, on the questions they share")
    compare.add_argument("first", metavar="A", help="run folder with results.json")
    compare.add_argument("second", metavar="B", help="another one")
    compare.set_defaults(run=_compare)
    _add_plan(commands)
    return parser


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser("plan", help="memory, steps and time of a training, before it starts")
    plan.add_argument("config", metavar="CONFIG", help="YAML file of recipes/train_kbm.py or train_ragate_peft.py")
    plan.add_argument("--gpus", type=int, default=1, help="GPUs of all machines together (default: 1)")
    plan.add_argument("--gpu-memory", type=float, default=80, metavar="GIB", help="of one GPU (default: 80)")
    plan.add_argument("--train", metavar="FILE", help="training examples of the KBM: their number and lengths")
    plan.add_argument("--examples", type=int, metavar="N", help="number of examples, where there is no file yet")
    plan.add_argument("--tokens", type=float, metavar="MEAN", help="their mean length (default: max_length)")
    plan.add_argument("--rate", metavar="TFLOPS", help="what one GPU reaches in training, or: measure (this CPU)")
    plan.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of the config")
    plan.set_defaults(run=_plan)


def _plan(args: argparse.Namespace) -> None:
    from kbtrain.command import plan_command

    sys.stdout.write(plan_command(args) + "\n")


def _compare(args: argparse.Namespace) -> None:
    from kbtrain.report.compare import text_comparison

    sys.stdout.write(text_comparison(Path(args.first), Path(args.second)) + "\n")


def _list(args: argparse.Namespace) -> None:
    for name, model in embedded.EMBEDDED.items():
        state = str(embedded.folder_of(name)) if embedded.is_ready(name) else "not fetched"
        sys.stdout.write(f"{name}  {model.about}, {model.licence}  [{state}]\n")


def _get(args: argparse.Namespace) -> None:
    folder = embedded.path_of(args.name, say=_step)
    sys.stdout.write(f"{args.name} is in {folder}\n")


def _path(args: argparse.Namespace) -> None:
    folder = embedded.folder_of(args.name)
    if not embedded.is_ready(args.name):
        raise UserError(f"{args.name} is not fetched yet; run: kbtrain models get {args.name}")
    sys.stdout.write(f"{folder}\n")


def _step(message: str) -> None:
    """One line of progress on stderr (stdout is for results)."""
    sys.stderr.write(f"{message} ...\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())
