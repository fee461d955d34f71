"""The command ``kbtrain``: everything an installed package needs outside of Python.

Examples:
  kbtrain ls                                   stages, recipes, configurations and launch files
  kbtrain demo                                 the whole chain on a small model, about 10 minutes
  kbtrain run collect --dataset jsonl --path questions.jsonl --run runs/mine
  kbtrain run train_kbm --launch zero2_4gpu --config kbm_qwen2_7b train=train.jsonl dev=dev.jsonl output=kbm
  kbtrain cp kbm_smollm2 mine.yaml             a copy to change; kbtrain check mine.yaml
  kbtrain models get smollm2-135m-instruct
  kbtrain compare runs/demo runs/demo-full
  kbtrain plan kbm_qwen2_7b --gpus 4 --gpu-memory 80 --examples 10000 --tokens 600 --rate 120
  kbtrain check-server http://127.0.0.1:8000/v1
  kbtrain decide runs/demo/kbm "What is the capital of France?"
  kbtrain serve runs/demo/kbm --model smollm2-135m-instruct
  kbtrain calibrate runs/demo/kbm --log decisions.jsonl --ratio 0.3
  kbtrain push runs/demo/kbm USER/NAME --dry-run
  kbtrain env                                  versions and devices, for a report of a fault
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kbtrain import __version__, scripts
from kbtrain.cores import share_cores
from kbtrain.errors import UserError, did_you_mean
from kbtrain.exit_code import exit_code

if TYPE_CHECKING:
    from kbtrain.training.plan.plan import PlannedTraining


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        if choice:
            hint = did_you_mean(choice[1], [name.strip("' ") for name in choice[2].split(",")])
            raise UserError(f"command line: invalid choice: '{choice[1]}'; {hint}")
        raise UserError(f"command line: {message}; see '{self.prog} --help'")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a user's error is one line on stderr and exit code 2."""
    share_cores()

    def work() -> None:
        args = _parser().parse_args(argv)
        args.run(args)

    return exit_code(work, "run the same command again to go on")


def _parser() -> argparse.ArgumentParser:
    summary, _, examples = (__doc__ or "").partition("\n")
    layout = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="kbtrain", description=summary, epilog=examples.strip(), formatter_class=layout)
    parser.add_argument("--version", action="version", version=f"kbtrain {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_scripts(commands)
    _add_demo(commands)
    _add_finish(commands)
    _add_models(commands)
    _add_server(commands)
    _add_decide(commands)
    _add_serve(commands)
    _add_push(commands)
    compare = commands.add_parser("compare", help="two finished evaluations, gate by gate, on the questions they share")
    compare.add_argument("first", metavar="A", help="run folder with results.json")
    compare.add_argument("second", metavar="B", help="another one")
    compare.set_defaults(run=_compare)
    _add_plan(commands)
    env = commands.add_parser("env", help="versions, devices, memory, threads and caches, for a report of a fault")
    env.set_defaults(run=_env)
    completion = commands.add_parser("completion", help='completion of this command: eval "$(kbtrain completion bash)"')
    completion.add_argument("shell", choices=("bash", "zsh"))
    completion.set_defaults(run=_completion)
    return parser


def _add_scripts(commands: Any) -> None:
    ls = commands.add_parser("ls", help="names of stages, recipes, configurations and launch files")
    ls.add_argument("kind", nargs="?", choices=scripts.KINDS, help="one kind only")
    ls.set_defaults(run=_ls)
    cp = commands.add_parser("cp", help="copy one of them, to change it")
    cp.add_argument("name", metavar="NAME", help="as in kbtrain ls")
    cp.add_argument("target", metavar="DEST", help="file or folder; a file that exists is not overwritten")
    cp.set_defaults(run=_cp)
    run = commands.add_parser(
        "run",
        help="run a stage or a recipe, as python SCRIPT would",
        usage="kbtrain run NAME|PATH [--launch NAME|PATH] [--config NAME|PATH] [--key value | key=value ...]",
        epilog="The keys of a script: kbtrain run NAME --help",
    )
    run.add_argument("name", metavar="NAME|PATH", help="stage, recipe, or a script of your own")
    run.add_argument("--launch", metavar="NAME|PATH", help="start it with accelerate and this launch file")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own")
    run.set_defaults(run=_run)
    check = commands.add_parser("check", help="all checks of a configuration; no model is loaded")
    check.add_argument("config", metavar="NAME|PATH", help="YAML file, or the name of a shipped one")
    check.add_argument("changes", metavar="key=value", nargs="*", help="what the command line would change")
    check.add_argument("--script", metavar="NAME", help="whose configuration it is, where its head does not say")
    check.add_argument("--no-files", action="store_true", help="do not look for the input files it names")
    check.set_defaults(run=_check)


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser("demo", help="the whole chain on a real model of 135 M weights, about 10 minutes")
    size = demo.add_mutually_exclusive_group()
    size.add_argument("--full", dest="size", action="store_const", const="full", help="all questions: about an hour")
    size.add_argument("--tiny", dest="size", action="store_const", const="tiny", help="32 questions: does it run here?")
    demo.set_defaults(run=_demo, size="demo")


def _add_finish(commands: Any) -> None:
    finish = commands.add_parser("finish", help="from a run folder's answers to a gate and a report, without a model")
    finish.add_argument("run_folder", metavar="RUN", help="run folder with questions, index and sampled answers")
    finish.set_defaults(run=_finish)


def _finish(args: argparse.Namespace) -> None:
    from kbtrain.demo import finish_own

    finish_own(Path(args.run_folder), _step)


def _add_models(commands: Any) -> None:
    models = commands.add_parser("models", help="models that kbtrain can fetch by itself")
    actions = models.add_subparsers(metavar="ACTION", required=True)
    actions.add_parser("list", help="their names and whether they are here").set_defaults(run=_list)
    for action, run, text in (("get", _get, "fetch and convert one, once"), ("path", _path, "print its folder")):
        sub = actions.add_parser(action, help=text)
        sub.add_argument("name", metavar="NAME", help="as in kbtrain models list")
        sub.set_defaults(run=run)


def _add_server(commands: Any) -> None:
    check = commands.add_parser("check-server", help="what a model server can, and a configuration that works with it")
    check.add_argument("url", metavar="URL", help="address up to and with /v1")
    check.add_argument("--model", metavar="NAME", help="the model's name on the server, where it has several")
    check.add_argument("--key-env", default="OPENAI_API_KEY", metavar="VARIABLE",
                       help="environment variable that holds the key (default: OPENAI_API_KEY)")  # fmt: skip
    check.add_argument("--output", default="server.yaml", metavar="FILE",
                       help="configuration to write (default: server.yaml)")  # fmt: skip
    check.set_defaults(run=_check_server)


def _add_decide(commands: Any) -> None:
    decide = commands.add_parser("decide", help="a gate's decisions about texts, one JSON line each")
    decide.add_argument("folder", metavar="FOLDER", help="the gate's folder, or USER/NAME on the hub")
    decide.add_argument("--revision", help="branch, tag or commit of a gate on the hub")
    decide.add_argument("texts", metavar="TEXT", nargs="*", help="questions; without any, lines of standard input")
    decide.add_argument("--file", metavar="FILE", help="a question a line, as text or JSON (field question or text)")
    decide.add_argument("--key", help="of a KBM: mastery, certainty or benefit (without it: the best on dev)")
    decide.add_argument("--threshold", type=float, help="in place of the one in the folder")
    decide.add_argument("--dtype", default="auto", help="auto (as saved), fp32, bf16 or fp16")
    decide.add_argument("--device", default="auto", help="auto, cpu or cuda")
    decide.add_argument("--verify", action="store_true", help="hash the weights, even if no file looks changed")
    decide.set_defaults(run=_decide)


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        help="put a gate in front of a model: an OpenAI-compatible server",
        usage="kbtrain serve FOLDER [--upstream URL | --model NAME] [--config FILE] [--key value | key=value ...]",
        add_help=False,
    )
    serve.add_argument("-h", "--help", action=_ServeHelp, nargs=0, help="all keys")
    serve.add_argument("arguments", nargs=argparse.REMAINDER, metavar="FOLDER", help="the gate's folder, then keys")
    serve.set_defaults(run=_serve)
    calibrate = commands.add_parser("calibrate", help="a gate's threshold from the decision log of kbtrain serve")
    calibrate.add_argument("folder", metavar="FOLDER", help="the gate's folder, whose gate.json takes the threshold")
    calibrate.add_argument("--log", required=True, metavar="FILE", help="the log; its rotated files are read too")
    calibrate.add_argument("--ratio", type=float, metavar="SHARE", help="share of questions to search for")
    calibrate.add_argument("--key", help="of a KBM, where the log holds several")
    calibrate.add_argument("--check", action="store_true", help="only compare with dev and with the threshold so far")
    calibrate.set_defaults(run=_calibrate)


def _add_push(commands: Any) -> None:
    push = commands.add_parser("push", help="send a gate to the Hugging Face hub, with a model card")
    push.add_argument("folder", metavar="FOLDER", help="the gate's folder")
    push.add_argument("name", metavar="USER/NAME", help="its repository; made if it is not there")
    push.add_argument("--dry-run", action="store_true", help="check everything, show files and card, send nothing")
    push.add_argument("--private", action="store_true", help="make the new repository private")
    push.add_argument("--base-model", metavar="USER/MODEL", help="the answering model's name on the hub")
    push.add_argument("--license", metavar="ID", help="of the weights, as the hub writes it: apache-2.0")
    push.add_argument("--no-hashes", action="store_true", help="keep the hashes of the training questions here")
    push.set_defaults(run=_push)


class _ServeHelp(argparse.Action):
    """Help of ``kbtrain serve``: the keys of its configuration."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from kbtrain.serve.server import serve_command

        serve_command(["--help"], _step)
        raise SystemExit(0)


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser("plan", help="memory, steps and time of a training, before it starts")
    plan.add_argument("config", metavar="NAME|PATH", help="configuration of recipe train_kbm or train_ragate_peft")
    plan.add_argument("--gpus", type=int, default=1, help="GPUs of all machines together (default: 1)")
    plan.add_argument("--gpu-memory", type=float, default=80, metavar="GIB", help="of one GPU (default: 80)")
    plan.add_argument("--train", metavar="FILE", help="training examples of the KBM: their number and lengths")
    plan.add_argument("--examples", type=int, metavar="N", help="number of examples, where there is no file yet")
    plan.add_argument("--tokens", type=float, metavar="MEAN", help="their mean length (default: max_length)")
    plan.add_argument("--rate", metavar="TFLOPS", help="what one GPU reaches in training, or: measure (this CPU)")
    plan.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of the config")
    plan.set_defaults(run=_plan)


def _ls(args: argparse.Namespace) -> None:
    kinds = (args.kind,) if args.kind else ()
    sys.stdout.write("\n".join(scripts.listing(*kinds)) + "\n")


def _cp(args: argparse.Namespace) -> None:
    sys.stdout.write(f"{scripts.copy(args.name, Path(args.target))}\n")


def _run(args: argparse.Namespace) -> None:
    launch, arguments = launch_of(args.launch, args.arguments)
    script = scripts.find(args.name, "stages", "recipes", what="stage or recipe")
    if launch is None:
        scripts.run(script, arguments)
    else:
        scripts.launch(script, scripts.find(launch, "launch", what="launch file"), arguments)


def launch_of(launch: str | None, words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The launch file and the script's own arguments; ``--launch`` may stand before or after the script's name."""
    rest = list(words)
    for i, word in enumerate(rest):
        if word == "--launch":
            if len(rest) == i + 1:
                raise UserError("command line: --launch: give a launch file; see 'kbtrain ls launch'")
            return rest[i + 1], rest[:i] + rest[i + 2 :]
        if word.startswith("--launch="):
            return word.removeprefix("--launch="), rest[:i] + rest[i + 1 :]
    return launch, rest


def _check(args: argparse.Namespace) -> None:
    from kbtrain import config_check

    path = scripts.find(args.config, "configs", what="config")
    checked = config_check.check_config(path, args.changes, args.script, not args.no_files)
    for problem in checked.problems[:-1]:
        sys.stderr.write(f"error: {problem}\n")
    if checked.problems:
        raise UserError(checked.problems[-1])
    sys.stdout.write(config_check.text(path, checked) + "\n")


def _check_server(args: argparse.Namespace) -> None:
    from kbtrain.llm.check_server import check_server, write_config

    output = Path(args.output)
    if output.exists():
        raise UserError(f"{output}: exists already; give another name by --output")
    found = check_server(args.url, args.model, args.key_env)
    write_config(found, output)
    lines = [*found.lines(), f"{found.n_requests} requests; wrote {output}",
             f"next: kbtrain run sample --config {output} --run RUN --dry-run"]  # fmt: skip
    sys.stdout.write("\n".join(lines) + "\n")


def _demo(args: argparse.Namespace) -> None:
    from kbtrain.demo import run_demo

    run_demo(args.size, _step)


def _decide(args: argparse.Namespace) -> None:
    import json

    from kbtrain.files import read_text
    from kbtrain.gates.decide import decisions, read_inputs
    from kbtrain.gates.registry import load_gate

    if args.texts and args.file:
        raise UserError("command line: give texts or --file, not both")
    inputs: Any = args.texts
    if args.file:
        inputs = read_inputs(read_text(args.file).splitlines(), args.file)
    elif not args.texts:
        inputs = read_inputs(sys.stdin, "standard input")
    gate = load_gate(args.folder, args.key, args.dtype, args.device, args.verify, args.revision)
    for decided in decisions(gate, inputs, args.threshold):
        sys.stdout.write(json.dumps(decided, ensure_ascii=False) + "\n")
        sys.stdout.flush()


def _serve(args: argparse.Namespace) -> None:
    from kbtrain.serve.server import serve_command

    serve_command(args.arguments, _step)


def _push(args: argparse.Namespace) -> None:
    from kbtrain.push.push import Push, push

    hashes = not args.no_hashes
    wanted = Push(Path(args.folder), args.name, args.private, args.dry_run, args.base_model, args.license, hashes)
    sys.stdout.write("\n".join(push(wanted, _step)) + "\n")


def _calibrate(args: argparse.Namespace) -> None:
    from kbtrain.serve.traffic import calibrate_traffic

    if args.check == (args.ratio is not None):
        raise UserError("command line: give --ratio SHARE, or --check")
    if args.ratio is not None and not 0 <= args.ratio <= 1:
        raise UserError("command line: --ratio: expected a share of searches, from 0 to 1")
    lines = calibrate_traffic(Path(args.folder), Path(args.log), args.ratio or 0.0, args.key, args.check)
    sys.stdout.write("\n".join(lines) + "\n")


def _compare(args: argparse.Namespace) -> None:
    from kbtrain.report.compare import read_finished, text_comparison

    first, second = read_finished(Path(args.first)), read_finished(Path(args.second))
    sys.stdout.write(text_comparison(first, second) + "\n")


def _env(args: argparse.Namespace) -> None:
    from kbtrain.environment import environment_text

    sys.stdout.write(environment_text() + "\n")


def _completion(args: argparse.Namespace) -> None:
    """Print the shell's script; it completes the names of scripts and configurations, and files."""
    try:
        import shtab
    except ImportError:
        raise UserError('completion needs shtab; run: pip install "kbtrain[completion]"') from None
    parser, names = _parser(), " ".join(sorted(scripts.shipped()))
    for action in _positionals(parser):
        if action.dest in {"name", "config"}:
            action.complete = {"bash": "_kbtrain_names", "zsh": "_kbtrain_names"}
    both = {
        "bash": f'_kbtrain_names() {{ compgen -W "{names}" -- "$1"; compgen -f -- "$1"; }}\n',
        "zsh": f"_kbtrain_names() {{ _alternative 'names:name:({names})' 'files:file:_files' }}\n",
    }
    sys.stdout.write(shtab.complete(parser, args.shell, preamble=both[args.shell]) + "\n")


def _positionals(parser: argparse.ArgumentParser) -> list[Any]:
    """Positional arguments of a parser's commands."""
    commands = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [a for found in commands for sub in found.choices.values() for a in sub._actions if not a.option_strings]


def _list(args: argparse.Namespace) -> None:
    from kbtrain.models import embedded

    for name, model in embedded.EMBEDDED.items():
        state = str(embedded.folder_of(name)) if embedded.is_ready(name) else "not fetched"
        sys.stdout.write(f"{name}  {model.about}, {model.licence}  [{state}]\n")


def _get(args: argparse.Namespace) -> None:
    from kbtrain.models import embedded

    folder = embedded.path_of(args.name, say=_wait)
    sys.stdout.write(f"{args.name} is in {folder}\n")


def _path(args: argparse.Namespace) -> None:
    from kbtrain.models import embedded

    folder = embedded.folder_of(args.name)
    if not embedded.is_ready(args.name):
        raise UserError(f"{args.name} is not fetched yet; run: kbtrain models get {args.name}")
    sys.stdout.write(f"{folder}\n")


def _wait(message: str) -> None:
    _step(f"{message} ...")


def _step(message: str) -> None:
    """One line of progress on stderr (stdout is for results)."""
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


def _plan(args: argparse.Namespace) -> None:
    sys.stdout.write(plan_command(args) + "\n")


def plan_command(args: argparse.Namespace) -> str:
    """Text of ``kbtrain plan``. Raises :class:`UserError`."""
    from kbtrain.training.plan.plan import read_planned
    from kbtrain.training.plan.text import text_plan

    if args.gpus < 1 or args.gpu_memory <= 0:
        raise UserError("command line: --gpus and --gpu-memory must be above 0")
    path, changes = scripts.find(args.config, "configs", what="config"), dict(_change(text) for text in args.set)
    examples, tokens = args.examples, args.tokens
    if args.train:
        examples, tokens = lengths(read_planned(path, changes), Path(args.train))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of other packages, about each other
        return text_plan(path, args.gpus, args.gpu_memory, changes, examples, tokens, _rate(args.rate))


def _change(text: str) -> tuple[str, Any]:
    import yaml

    from kbtrain.config import NOT_YAML

    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"command line: --set {text}: write KEY=VALUE")
    try:
        return key, yaml.safe_load(value)
    except NOT_YAML:
        raise UserError(f"command line: --set {text}: its value is no YAML") from None


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


if __name__ == "__main__":
    raise SystemExit(main())
