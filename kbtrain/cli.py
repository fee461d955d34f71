"""Train, measure and serve gates: small models that decide whether a language model searches first.

Examples:
  kbtrain demo                                 the whole chain on a small model, 8 minutes or more
  kbtrain decide runs/demo/stack "What is the capital of France?"
  kbtrain serve runs/demo/stack --model smollm2-135m-instruct
  kbtrain run collect --dataset jsonl --path questions.jsonl --shares 0.5,0.25,0.25 --run runs/mine
  kbtrain ls                                   stages, recipes, configurations and launch files
  kbtrain run train_kbm --launch zero2_4gpu --config kbm_qwen2_7b train=train.jsonl dev=dev.jsonl output=kbm
  kbtrain cp kbm_smollm2 mine.yaml             a copy to change; kbtrain check mine.yaml
  kbtrain models get smollm2-135m-instruct
  kbtrain compare runs/demo runs/demo-full
  kbtrain plan kbm_qwen2_7b --gpus 4 --gpu-memory 80 --examples 10000 --tokens 600 --rate 120
  kbtrain check-server http://127.0.0.1:8001/v1 --output server.yaml
  kbtrain public data --run runs/public        gates on public questions, one model
  kbtrain public data --answers 4              the same with fewer answers to learn from
  kbtrain finish runs/mine                     from sampled answers to a gate, its threshold and a report
  kbtrain mcp runs/mine/features               the gate and its run's index for agents, over standard input
  kbtrain calibrate runs/mine/features --log decisions.jsonl --ratio 0.3
  kbtrain audit runs/mine/features --log decisions.jsonl --run runs/audit --n 60
  kbtrain audit runs/mine/features --run runs/audit --verdicts runs/audit/sheet.csv --apply
  kbtrain next runs/mine/features --log decisions.jsonl --n 50 --output next.jsonl
  kbtrain value runs/mine/features --log decisions.jsonl --threshold 0.4
  kbtrain push runs/mine/features USER/NAME --dry-run
  kbtrain env                                  versions and devices, for a report of a fault
"""

from __future__ import annotations

import argparse
import difflib
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from kbtrain import __version__, commands
from kbtrain.errors import TEXT, UserError, did_you_mean, is_text
from kbtrain.records import DtypeName
from kbtrain.runtime import scripts
from kbtrain.runtime.cores import raise_gc_threshold, share_cores
from kbtrain.runtime.exit_code import exit_code

if TYPE_CHECKING:
    Parsers = argparse._SubParsersAction["_Parser"]


_KEY = "label by which a gate with several decides: mastery, certainty, benefit, change"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        if choice:
            valid = [name.strip("' ") for name in choice[2].split(",")]
            hint = did_you_mean(choice[1], valid)
            stages = scripts.shipped("stages", "recipes") if self.prog == "kbtrain" else ()
            near = difflib.get_close_matches(choice[1], [*valid, *stages], n=1, cutoff=0.8)
            if near and near[0] not in valid:
                hint = f"did you mean 'kbtrain run {near[0]}'? (kbtrain ls stages)"
            raise UserError(f"command line: invalid choice: '{choice[1]}'; {hint}")
        raise UserError(f"command line: {message}; see '{self.prog} --help'")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a user's error is one line on stderr and exit code 2."""
    share_cores()
    raise_gc_threshold()

    def work() -> None:
        args = _arguments(argv)
        args.run(args)

    return exit_code(work, "run the same command again to resume")


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The parsed command line; what may be repeated may also stand behind options, as argparse allows not."""
    parser, words = _parser(), sys.argv[1:] if argv is None else argv
    for number, word in enumerate(words, 1):
        if not is_text(word):  # it may hold a key, and is not repeated
            parser.error(f"word {number}: expected {TEXT}")
    args, rest = parser.parse_known_args(words)
    if args.run in (commands.serve, commands.mcp):  # all words are the server's own, --help too
        args.arguments, rest = list(words[words.index(args.run.__name__) + 1 :]), []
    option = next((word.partition("=")[0] for word in rest if re.match("-.", word)), None)
    for name in {"texts", "changes"} & vars(args).keys() if rest and option is None else ():
        setattr(args, name, [*getattr(args, name), *rest])
        return args
    if rest:
        near = difflib.get_close_matches(option or "", _options(parser, words), n=1, cutoff=0.7)
        hint = f"did you mean '{near[0]}'?" if near else "see 'kbtrain --help'"
        raise UserError(f"command line: unrecognized arguments: {' '.join(rest)}; {hint}")
    return args


def _options(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Options of the command that the words name."""
    for word in words:
        commands = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        parser = commands[0].choices.get(word, parser) if commands else parser
    return [option for option in parser._option_string_actions if option.startswith("--")]


def _parser() -> argparse.ArgumentParser:
    summary, _, examples = (__doc__ or "").partition("\n")
    layout = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="kbtrain", description=summary, epilog=examples.strip(), formatter_class=layout)
    parser.add_argument("--version", action="version", version=f"kbtrain {__version__}")
    parsers = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_scripts(parsers)
    _add_demo(parsers)
    _add_finish(parsers)
    _add_public(parsers)
    _add_models(parsers)
    _add_server(parsers)
    _add_vllm_args(parsers)
    _add_decide(parsers)
    _add_serve(parsers)
    _add_calibrate(parsers)
    _add_audit(parsers)
    _add_next(parsers)
    _add_value(parsers)
    _add_push(parsers)
    compare = _command(parsers, "compare", "two finished evaluations, gate by gate, on the questions they share")
    compare.add_argument("first", metavar="A", help="run folder with results.json")
    compare.add_argument("second", metavar="B", help="another one")
    compare.set_defaults(run=commands.compare)
    _add_plan(parsers)
    env = _command(parsers, "env", "versions, devices, memory, threads and caches, for a report of a fault")
    env.set_defaults(run=commands.env)
    completion = _command(parsers, "completion", 'completion of this command: eval "$(kbtrain completion bash)"')
    completion.add_argument("shell", choices=("bash", "zsh"))
    completion.set_defaults(run=_completion)
    return parser


def _command(parsers: Parsers, name: str, about: str, **more: Any) -> _Parser:
    """A command's parser; its help says what the list of commands says, and shows its examples of that page."""
    lines = [line.strip() for line in (__doc__ or "").splitlines() if line.strip().startswith(f"kbtrain {name} ")]
    examples = "Examples:\n" + "\n".join(f"  {line}" for line in lines) if lines else None
    settings = {"description": f"{about[0].upper()}{about[1:]}.", "epilog": examples, **more}
    return parsers.add_parser(name, help=about, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)


def _add_scripts(parsers: Parsers) -> None:
    ls = _command(parsers, "ls", "names of stages, recipes, configurations and launch files")
    ls.add_argument("kind", nargs="?", choices=scripts.KINDS, help="one kind only")
    ls.set_defaults(run=commands.ls)
    cp = _command(parsers, "cp", "copy one of them, to change it")
    cp.add_argument("name", metavar="NAME|PATH", help="as in kbtrain ls")
    cp.add_argument("target", metavar="DEST", help="file or folder; a file that exists is not overwritten")
    cp.set_defaults(run=commands.cp)
    run = _command(
        parsers,
        "run",
        "run one step by its name: a stage (collect, retrieve, sample, ...) or a recipe (train_probe, ...)",
        usage="kbtrain run NAME|PATH [--launch NAME|PATH] [--config NAME|PATH] [--key value | key=value ...]",
        epilog="The keys of a script: kbtrain run NAME --help. With --launch, accelerate's --num_processes, "
        "--num_machines, --machine_rank, --main_process_ip and --main_process_port may stand among them.",
    )
    run.add_argument("name", metavar="NAME|PATH", help="stage, recipe, or a script of your own")
    run.add_argument("--launch", metavar="NAME|PATH", help="start it with accelerate and this launch file")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="the script's own")
    run.set_defaults(run=commands.run)
    check = _command(parsers, "check", "all checks of a configuration; no model is loaded")
    check.add_argument("config", metavar="NAME|PATH", help="YAML file, or the name of a shipped one")
    check.add_argument("changes", metavar="key=value", nargs="*", default=[], help="what the command line would change")
    check.add_argument("--script", metavar="NAME", help="whose configuration it is, where its head does not say")
    check.add_argument("--no-files", action="store_true", help="do not look for the input files it names")
    check.set_defaults(run=commands.check)


def _add_demo(parsers: Parsers) -> None:
    demo = _command(parsers, "demo", "the whole chain on a real model of 135 M weights, 8 to 20 minutes on 2 cores")
    size = demo.add_mutually_exclusive_group()
    size.add_argument("--full", dest="size", action="store_const", const="full", help="all questions: 35 to 120 min")
    size.add_argument("--tiny", dest="size", action="store_const", const="tiny", help="36 questions: does it run here?")
    demo.set_defaults(run=commands.demo, size="demo")


def _add_finish(parsers: Parsers) -> None:
    finish = _command(parsers, "finish", "from a run folder's answers to a gate and a report, without a model")
    finish.add_argument("run_folder", metavar="RUN", help="run folder with questions, index and sampled answers")
    finish.add_argument("--prices", metavar="FILE", help="price list of the report")
    finish.set_defaults(run=commands.finish)


def _add_public(parsers: Parsers) -> None:
    public = _command(parsers, "public", "white-box gates on public questions that a model knows in part: hours")
    public.add_argument("data", metavar="DATA", help="folder with the data sets' files and passages.jsonl")
    public.add_argument(
        "--model", metavar="NAME", default="smollm2-135m-instruct", help="embedded name, local folder or hub id"
    )
    public.add_argument("--run", dest="run_folder", metavar="RUN", default="runs/public", help="run folder")
    public.add_argument("--chinese", action="store_true", help="the Chinese data sets, too")
    public.add_argument(
        "--without-yes-no", dest="yes_no", action="store_false", help="no question whose gold answer is yes or no"
    )
    public.add_argument(
        "--answers",
        type=_answers,
        metavar="N",
        default=30,
        help="to each training question, a third to each dev question (default: 30); fewer take less time",
    )
    public.add_argument(
        "--prompts",
        metavar="{llm: FILE, rag: FILE}",
        help="own templates with {question} and {evidence}: a base model needs a few questions and answers",
    )
    public.set_defaults(run=commands.public)


def _add_models(parsers: Parsers) -> None:
    models = _command(parsers, "models", "models that kbtrain can fetch by itself")
    actions = models.add_subparsers(metavar="ACTION", required=True)
    actions.add_parser("list", help="their names and whether they are here").set_defaults(run=commands.list_models)
    for action, run, text in (
        ("get", commands.get_model, "fetch and convert one, once"),
        ("path", commands.model_path, "print its folder"),
    ):
        sub = actions.add_parser(action, help=text)
        sub.add_argument("name", metavar="NAME", help="as in kbtrain models list")
        sub.set_defaults(run=run)


def _add_server(parsers: Parsers) -> None:
    check = _command(parsers, "check-server", "what a model server can, and a configuration that works with it")
    check.add_argument("url", metavar="URL", help="address up to and with /v1")
    check.add_argument("--model", metavar="NAME", help="the model's name on the server, where it has several")
    check.add_argument("--key-env", default="OPENAI_API_KEY", metavar="VARIABLE",
                       help="environment variable that holds the key (default: OPENAI_API_KEY)")  # fmt: skip
    check.add_argument("--timeout", type=_seconds, default=60.0, metavar="SECONDS",
                       help="longest silence of the server (default: 60)")  # fmt: skip
    check.add_argument("--samples", type=_count, default=30, metavar="N",
                       help="answers a question that sampling will ask for (default: 30)")  # fmt: skip
    check.add_argument("--max-new-tokens", type=_count, default=64, metavar="N",
                       help="longest answer that sampling will ask for, in tokens (default: 64)")  # fmt: skip
    check.add_argument("--allow-empty", action="store_true",
                       help="write the configuration though over a fifth of the answers say nothing")  # fmt: skip
    check.add_argument("--states", metavar="GATE|MODEL",
                       help="compare vLLM's hidden states with a gate's reference, or with a model's here")  # fmt: skip
    check.add_argument("--output", default="server.yaml", metavar="FILE",
                       help="configuration to write (default: server.yaml)")  # fmt: skip
    check.set_defaults(run=commands.check_server)


def _add_vllm_args(parsers: Parsers) -> None:
    flags = _command(parsers, "vllm-args", "flags for vllm serve, so that it returns the states that gates read")
    flags.add_argument(
        "folders", metavar="FOLDER", nargs="+", help="a probe's or SeaKR's folder, or a stack's of probes"
    )
    flags.set_defaults(run=commands.vllm_args)


def _within(kind: type[int] | type[float], low: float, high: float, expected: str) -> Callable[[str], float]:
    """A reader of numbers from ``low`` to ``high``, for argparse."""

    def read(text: str) -> float:
        try:
            # int() and float() also take other scripts' digits and 1_000
            number: float = kind(text) if re.fullmatch(r"[!-^`-~]+", text) else math.nan
        except ValueError:
            number = math.nan
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"expected {expected}, found '{text}'")
        return number

    return read


_count = _within(int, 1, math.inf, "a whole number from 1")
_answers = _within(int, 2, 1000, "2 to 1000 answers")
_finite = _within(float, -sys.float_info.max, sys.float_info.max, "a finite number")
_seconds = _within(float, math.nextafter(0, 1), 86400, "seconds above 0, a day at most")
_share = _within(float, math.nextafter(0, 1), math.nextafter(1, 0), "a share above 0 and below 1")


def _add_decide(parsers: Parsers) -> None:
    decide = _command(parsers, "decide", "a gate's decisions about texts, one JSON line each")
    decide.add_argument("folder", metavar="FOLDER", help="the gate's folder, or USER/NAME on the hub")
    decide.add_argument("--revision", metavar="NAME", help="branch, tag or commit of a gate on the hub")
    texts = "questions; none, or -: lines of standard input"
    decide.add_argument("texts", metavar="TEXT", nargs="*", default=[], help=texts)
    decide.add_argument(
        "--file", metavar="FILE", help="a question a line, as text or JSON (field question or text), or a .csv"
    )
    decide.add_argument(
        "--field", metavar="NAME", help="the question's field in JSON lines, or column in a .csv, of your own"
    )
    decide.add_argument("--key", metavar="NAME", help=f"{_KEY} (default: the best on dev)")
    decide.add_argument("--threshold", type=_finite, metavar="X", help="in place of the one in the folder")
    decide.add_argument("--dtype", default="auto", choices=get_args(DtypeName), help="auto: as saved (default)")
    decide.add_argument("--device", default="auto", metavar="auto|cpu|cuda", help="default: auto")
    decide.add_argument("--verify", action="store_true", help="hash the weights, even if no file looks changed")
    decide.set_defaults(run=commands.decide)


def _add_serve(parsers: Parsers) -> None:
    serve = _command(
        parsers,
        "serve",
        "put a gate in front of a model: an OpenAI-compatible server",
        usage="kbtrain serve FOLDER [--upstream URL | --model NAME] [--config FILE] [--key value | key=value ...]",
        add_help=False,
    )
    serve.add_argument("arguments", nargs=argparse.REMAINDER, metavar="FOLDER", help="the gate's folder, then keys")
    serve.set_defaults(run=commands.serve)
    mcp = _command(
        parsers,
        "mcp",
        "offer a gate to agents: an MCP server with tools should_search and search",
        usage="kbtrain mcp FOLDER [--search FOLDER|FILE|URL] [--config FILE] [--key value | key=value ...]",
        add_help=False,
    )
    mcp.add_argument("arguments", nargs=argparse.REMAINDER, metavar="FOLDER", help="the gate's folder, then keys")
    mcp.set_defaults(run=commands.mcp)


def _add_calibrate(parsers: Parsers) -> None:
    calibrate = _command(parsers, "calibrate", "a gate's threshold from the decision log of kbtrain serve")
    calibrate.add_argument("folder", metavar="FOLDER", help="the gate's folder, whose gate.json takes the threshold")
    calibrate.add_argument("--log", metavar="FILE", help="the log; its rotated files are read too")
    calibrate.add_argument("--ratio", type=_finite, metavar="SHARE", help="share of questions to search for")
    calibrate.add_argument("--key", metavar="NAME", help=_KEY)
    calibrate.add_argument("--check", action="store_true", help="only compare with dev and with the threshold so far")
    calibrate.add_argument("--replace", action="store_true", help="replace a threshold even if it has a promise")
    calibrate.add_argument("--rollback", action="store_true", help="put back the threshold before the calibration")
    calibrate.add_argument("--dry-run", action="store_true", help="show the threshold, and write nothing")
    calibrate.add_argument(
        "--prices", type=Path, default=argparse.SUPPRESS, metavar="FILE", help="price list of the bill"
    )
    calibrate.set_defaults(run=commands.calibrate)


def _add_audit(parsers: Parsers) -> None:
    audit = _command(
        parsers,
        "audit",
        "judge a sample of logged turns: needless and missed searches, and a threshold, with intervals",
    )
    audit.add_argument("folder", type=Path, metavar="FOLDER", help="the gate's folder")
    audit.add_argument("--run", type=Path, dest="run_folder", metavar="RUN", help="run folder of the audit")
    audit.add_argument("--log", type=Path, metavar="FILE", help="decision log to draw from, written with --log-text")
    audit.add_argument("--turns", type=Path, metavar="FILE", help="or: a file of questions, which the gate scores")
    audit.add_argument("--field", metavar="NAME", help="the question's field or column in --turns")
    audit.add_argument("--n", type=_count, default=100, metavar="N", help="turns to draw (default: 100)")
    audit.add_argument("--seed", type=int, default=0, metavar="N", help="of the draw (default: 0)")
    audit.add_argument("--gold", type=Path, metavar="FILE", help="accepted answers: columns question and answers")
    audit.add_argument(
        "--verdicts", type=Path, metavar="FILE", help="people's verdicts: the sheet, filled in as far as you like"
    )
    audit.add_argument(
        "--judge", type=Path, metavar="FILE", help="a judge's verdicts on all turns, in the form of the sheet"
    )
    audit.add_argument("--goal", choices=("best_accuracy", "max_loss"), default="best_accuracy",
                       help="of the proposed threshold (default: best_accuracy)")  # fmt: skip
    audit.add_argument("--max-loss", type=_share, default=0.05, metavar="SHARE",
                       help="goal max_loss: right answers that may be lost against always searching, promised with "
                       "probability 0.9 (default: 0.05)")  # fmt: skip
    audit.add_argument("--prices", type=Path, default=argparse.SUPPRESS, metavar="FILE", help="price list")
    audit.add_argument("--answer", action="store_true", help="answer the drawn turns, as the gate's run was answered")
    audit.add_argument("--apply", action="store_true", help="note the proposed threshold in the gate's folder")
    audit.add_argument("--replace", action="store_true",
                       help="with --apply: also note one that is not better, or that ends a promise")  # fmt: skip
    audit.add_argument("--rollback", action="store_true", help="put back the threshold before the last applied audit")
    audit.add_argument("--dry-run", action="store_true", help="say what would be done, and write nothing")
    audit.add_argument("--key", metavar="NAME", help=_KEY)
    audit.set_defaults(run=commands.audit)


def _add_next(parsers: Parsers) -> None:
    chosen = _command(parsers, "next", "questions of a log to label next, at random or near the gate's threshold")
    chosen.add_argument("folder", type=Path, metavar="FOLDER", help="the gate's folder")
    chosen.add_argument("--log", type=Path, metavar="FILE", help="decision log, written with --log-text")
    chosen.add_argument("--turns", type=Path, metavar="FILE", help="or: a file of questions, which the gate scores")
    chosen.add_argument("--field", metavar="NAME", help="the question's field or column in --turns")
    chosen.add_argument("--n", type=_count, default=50, metavar="N", help="questions (default: 50)")
    chosen.add_argument("--by", choices=("random", "uncertainty", "diversity"), default="random",
                        help="random; uncertainty: scores nearest to the threshold; diversity: unlike each other in "
                        "a rule as many random ones are drawn (default: random)")  # fmt: skip
    chosen.add_argument("--seed", type=int, default=0, metavar="N", help="of the draw (default: 0)")
    chosen.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="JSON lines: question, chosen_by, score"
    )
    chosen.add_argument("--key", metavar="NAME", help=_KEY)
    chosen.set_defaults(run=commands.choose_questions)


def _add_value(parsers: Parsers) -> None:
    value = _command(
        parsers, "value", "what other gates and thresholds were worth, from the log of kbtrain serve --explore"
    )
    value.add_argument("folder", metavar="FOLDER", help="folder of the gate that decided")
    value.add_argument("--log", required=True, metavar="FILE", help="the log; its rotated files are read too")
    value.add_argument(
        "--threshold", type=_finite, metavar="X", action="append", default=[], help="value this one, too"
    )
    value.add_argument(
        "--gate",
        metavar="FOLDER",
        action="append",
        default=[],
        help="another gate, on questions that it was not trained on; needs a log with texts",
    )
    value.add_argument("--key", metavar="NAME", help=_KEY)
    value.set_defaults(run=commands.value)


def _add_push(parsers: Parsers) -> None:
    push = _command(parsers, "push", "send a gate to the Hugging Face hub, with a model card")
    push.add_argument("folder", metavar="FOLDER", help="the gate's folder")
    push.add_argument("name", metavar="USER/NAME", help="its repository; made if it is not there")
    push.add_argument("--dry-run", action="store_true", help="check everything, show files and card, send nothing")
    push.add_argument("--private", action="store_true", help="make the new repository private")
    push.add_argument("--base-model", metavar="USER/MODEL", help="the answering model's name on the hub")
    push.add_argument("--license", metavar="ID", help="of the weights, as the hub writes it: apache-2.0")
    push.add_argument("--no-hashes", action="store_true", help="keep the hashes of the training questions here")
    push.set_defaults(run=commands.push)


def _add_plan(parsers: Parsers) -> None:
    plan = _command(parsers, "plan", "memory, steps and time of a training, before it starts")
    plan.add_argument("config", metavar="NAME|PATH", help="configuration of recipe train_kbm or train_ragate_peft")
    plan.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs of all machines together (default: 1)")
    plan.add_argument("--gpu-memory", type=_finite, default=80, metavar="GIB", help="of one GPU (default: 80)")
    plan.add_argument("--train", metavar="FILE", help="training examples of the KBM: their number and lengths")
    plan.add_argument("--examples", type=int, metavar="N", help="number of examples, if the file does not exist yet")
    plan.add_argument("--tokens", type=_finite, metavar="MEAN", help="their mean length (default: max_length)")
    plan.add_argument("--rate", metavar="TFLOPS", help="what one GPU reaches in training, or: measure (this CPU)")
    plan.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a key of the config")
    plan.set_defaults(run=commands.plan)


def _completion(args: argparse.Namespace) -> None:
    """Print the shell's script; it completes the names of scripts and configurations, and files."""
    try:
        import shtab
    except ImportError:
        raise UserError('completion needs shtab; run: pip install "kbtrain[completion]"') from None
    parser, names = _parser(), " ".join(sorted(scripts.shipped()))
    for action in _with_values(parser):
        named = action.metavar == "NAME|PATH" or (action.dest, action.metavar) == ("arguments", None)
        # a function called _files: shtab lets bash put a slash behind a folder then
        action.complete = {"bash": "_kbtrain_files", "zsh": "_kbtrain_files"} if named else shtab.FILE
    both = {
        "bash": f'_kbtrain_files() {{ compgen -W "{names}" -- "$1"; compgen -f -- "$1"; }}\n',
        "zsh": f"_kbtrain_files() {{ _alternative 'names:name:({names})' 'files:file:_files' }}\n",
    }
    sys.stdout.write(shtab.complete(parser, args.shell, preamble=both[args.shell]) + "\n")


def _with_values(parser: argparse.ArgumentParser) -> list[Any]:
    """Options and positional arguments of a parser's commands that take a value of the user's own."""
    commands = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    actions = [action for group in commands for sub in group.choices.values() for action in sub._actions]
    return [action for action in actions if action.nargs != 0 and not action.choices]


if __name__ == "__main__":
    raise SystemExit(main())
