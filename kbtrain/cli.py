"""The command ``kbtrain``: what an installed package needs outside of Python.

Examples:
  kbtrain models list
  kbtrain models get smollm2-135m-instruct
  kbtrain models path smollm2-135m-instruct
  kbtrain compare runs/demo runs/demo-full
  kbtrain plan recipes/configs/kbm_qwen2_7b.yaml --gpus 4 --gpu-memory 80 --examples 10000 --tokens 600 --rate 120

``kbtrain plan``: its arguments checked, and turned into a plan.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from kbtrain import __version__
from kbtrain.errors import UserError
from kbtrain.models import embedded
from kbtrain.training.plan.plan import PlannedTraining, read_planned
from kbtrain.training.plan.text import text_plan


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


def plan_command(args: argparse.Namespace) -> str:
    """The text to print. Raises :class:`UserError`."""
    if args.gpus < 1 or args.gpu_memory <= 0:
        raise UserError("command line: --gpus and --gpu-memory must be above 0")
    path, changes = Path(args.config), dict(_change(text) for text in args.set)
    examples, tokens = args.examples, args.tokens
    if args.train:
        examples, tokens = lengths(read_planned(path, changes), Path(args.train))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of other packages, about each other
        return text_plan(path, args.gpus, args.gpu_memory, changes, examples, tokens, _rate(args.rate))


def _change(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"command line: --set {text}: write KEY=VALUE")
    return key, yaml.safe_load(value)


def _rate(text: str | None) -> float | None:
    """TFLOP/s as given, or the rate of this machine's matrix products in 16 bits."""
    if text is None:
        return None
    if text == "measure":
        import torch

        from kbtrain.models.load import matmul_rate

        return max(matmul_rate(torch.bfloat16), matmul_rate(torch.float32)) / 1e12
    try:
        return float(text)
    except ValueError:
        raise UserError(f"command line: --rate {text}: give a number of TFLOP/s, or measure") from None


def lengths(config: PlannedTraining, train: Path) -> tuple[int, float]:
    """Number of examples in a KBM's training file and their mean length in the model's own tokens."""
    from kbtrain.gates.true_false.template import Encoder, kbm_template
    from kbtrain.jsonl import read
    from kbtrain.models.load import load_tokenizer
    from kbtrain.prompts.kbm import PAPER_KEYS
    from kbtrain.records import GateExample

    encoder = Encoder(load_tokenizer(config.model), kbm_template(config.keys or PAPER_KEYS), config.max_length)
    found = [encoder.encode(example).length for example in read(GateExample, train)]
    if not found:
        raise UserError(f"{train}: no examples in it")
    return len(found), sum(found) / len(found)
