"""Train, measure and serve gates: small models that decide whether a language model searches first.

Examples:
  kbtrain demo                                 the whole chain on a small model, 8 minutes or more
  kbtrain decide runs/demo/stack "What is the capital of France?"
  kbtrain serve runs/demo/stack --model smollm2-135m-instruct
  kbtrain run collect --dataset jsonl --path questions.jsonl --shares 0.5,0.25,0.25 --run runs/mine
  kbtrain ls                                   stages, recipes, configurations and launch files
  kbtrain run train_kbm --launch zero2_4gpu --config kbm_qwen2_7b train=train.jsonl dev=dev.jsonl output=kbm
  kbtrain ls --copy kbm_smollm2 mine.yaml      a copy to change
  kbtrain models get smollm2-135m-instruct
  kbtrain check-server http://127.0.0.1:8001/v1 --output server.yaml
  kbtrain fit questions.jsonl --server http://127.0.0.1:8001/v1 --corpus passages.jsonl --run runs/mine
  kbtrain fit answers.csv --answers "{llm: plain, rag: with_passages}" --run runs/mine
  kbtrain finish runs/mine                     from sampled answers to a gate, its threshold and a report
  kbtrain mcp runs/mine/features               the gate and its run's index for agents, over standard input
  kbtrain calibrate runs/mine/features --log decisions.jsonl --ratio 0.3
  kbtrain audit runs/mine/features --log decisions.jsonl --run runs/audit --n 60
  kbtrain audit runs/mine/features --run runs/audit --verdicts runs/audit/sheet.csv --apply
  kbtrain value runs/mine/features --log decisions.jsonl --threshold 0.4
  kbtrain push runs/mine/features USER/NAME --dry-run
  kbtrain env                                  versions and devices, for a bug report
"""

from __future__ import annotations

import argparse
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

_KEY = "label by which a gate with several decides: mastery, certainty, benefit"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)
        if choice:
            valid = [name.strip("' ") for name in choice[2].split(",")]
            raise UserError(f"command line: invalid choice: '{choice[1]}'; {did_you_mean(choice[1], valid)}")
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
    """The parsed command line; what may be repeated may also be behind options, as argparse allows not."""
    parser, words = _parser(), sys.argv[1:] if argv is None else argv
    for number, word in enumerate(words, 1):
        if not is_text(word):  # it may hold a key, and is not repeated
            parser.error(f"word {number}: expected {TEXT}")
    args, rest = parser.parse_known_args(words)
    if args.run in (commands.serve, commands.mcp):  # all words are the server's own, --help too
        args.arguments, rest = list(words[words.index(args.run.__name__) + 1 :]), []
    if rest and "texts" in args and not any(re.match("-.", word) for word in rest):
        args.texts, rest = [*args.texts, *rest], []
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return args


def _parser() -> argparse.ArgumentParser:
    summary, _, examples = (__doc__ or "").partition("\n")
    layout = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="kbtrain", description=summary, epilog=examples.strip(), formatter_class=layout)
    parser.add_argument("--version", action="version", version=f"kbtrain {__version__}")
    parsers = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_scripts(parsers)
    _add_chains_and_models(parsers)
    _add_server(parsers)
    _add_use(parsers)
    _add_traffic(parsers)
    _add_rest(parsers)
    return parser


def _command(parsers: Parsers, name: str, run: Callable[..., None], about: str, **more: Any) -> _Parser:
    """A command's parser; its help says what the list of commands says, and shows its examples of that page."""
    lines = [line.strip() for line in (__doc__ or "").splitlines() if line.strip().startswith(f"kbtrain {name} ")]
    examples = "Examples:\n" + "\n".join(f"  {line}" for line in lines) if lines else None
    settings = {"description": about[0].upper() + about[1:] + "." * (about[-1] != "?"), "epilog": examples, **more}
    parser = parsers.add_parser(name, help=about, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)
    parser.set_defaults(run=run)
    return parser


def _add(parser: argparse._ActionsContainer, name: str, metavar: str, text: str, **more: Any) -> None:
    """An argument with its help, which names a default."""
    if more.get("default") not in (None, [], argparse.SUPPRESS):
        text += f" (default: {more['default']})"
    parser.add_argument(name, metavar=metavar, help=text, **more)


def _flag(parser: argparse._ActionsContainer, name: str, text: str) -> None:
    parser.add_argument(name, help=text, action="store_true")


def _add_scripts(parsers: Parsers) -> None:
    ls = _command(parsers, "ls", commands.ls, "names of stages, recipes, configurations and launch files")
    ls.add_argument("kind", nargs="?", choices=scripts.KINDS, help="one kind only")
    ls.add_argument("--copy", nargs=2, metavar=("NAME", "DEST"), help="copy one of them, to change it")
    run = _command(
        parsers, "run", commands.run,
        "run one step by its name: a stage (collect, retrieve, sample, ...) or a recipe (train_probe, ...)",
        usage="kbtrain run NAME|PATH [--launch NAME|PATH] [--config NAME|PATH] [--key value | key=value ...]",
        epilog="The keys of a script: kbtrain run NAME --help. With --launch, accelerate's --num_processes, "
        "--num_machines, --machine_rank, --main_process_ip and --main_process_port may be among them.",
    )  # fmt: skip
    _add(run, "name", "NAME|PATH", "stage, recipe, or a script of your own")
    text = "the script's own arguments; --launch NAME|PATH: start it with accelerate and this launch file"
    run.add_argument("arguments", nargs=argparse.REMAINDER, help=text)


def _add_chains_and_models(parsers: Parsers) -> None:
    demo = _command(
        parsers, "demo", commands.demo, "the whole chain on a real model of 135M parameters, 8 to 40 minutes on 2 cores"
    )
    size = demo.add_mutually_exclusive_group()
    size.add_argument("--full", dest="size", action="store_const", const="full", help="all questions: 35 to 120 min")
    size.add_argument("--tiny", dest="size", action="store_const", const="tiny", help="36 questions: a quick test")
    demo.set_defaults(size="demo")

    _add_fit(parsers)
    finish = _command(
        parsers, "finish", commands.finish, "from a run folder's answers to a gate and a report, without a model"
    )
    _add(finish, "run_folder", "RUN", "run folder with questions, index and sampled answers")
    _add(finish, "--prices", "FILE", "price list of the report")

    models = _command(parsers, "models", commands.list_models, "models that kbtrain can fetch by itself")
    actions = models.add_subparsers(metavar="ACTION", required=True)
    actions.add_parser("list", help="names of the models, and whether they are here")
    for action, text in (("get", "fetch and convert one, once"), ("path", "print its folder")):
        sub = actions.add_parser(action, help=text)
        _add(sub, "name", "NAME", "as in kbtrain models list")
        sub.set_defaults(run=commands.model, fetch=action == "get")


def _add_fit(parsers: Parsers) -> None:
    fit = _command(
        parsers, "fit", commands.fit, "from a file of questions to a decision: does a search help, does a gate pay?"
    )
    _add(fit, "file", "FILE", "questions with reference answers: JSON Lines, JSON, CSV, TSV or Parquet", type=Path)
    _add(fit, "--run", "RUN", "run folder; the same command resumes in it", type=Path, required=True, dest="run_folder")
    _add(fit, "--server", "URL", "the model's server, address up to and with /v1")
    _add(fit, "--config", "FILE", "instead of --server: a configuration that check-server wrote", type=Path)
    _add(fit, "--model", "NAME", "the model's name on the server, if it serves several")
    _add(fit, "--corpus", "FILE", "passages to search: a file, or a folder of documents", type=Path)
    _add(fit, "--answers", "{llm: A, rag: B}", "columns of both answers, if the file has them: no request is sent")
    _add(fit, "--columns", "{text: A, answers: B}", "columns of question and answers (default: the usual names)")
    _add(fit, "--group-by", "COLUMN", "column whose equal values, as a document's, stay in one split")
    _add(fit, "--gate", "NAME", "gate to fit; others read more and cost more", default="features")
    _add(fit, "--pilot", "N", "questions of the pilot, which says whether a search helps", type=_count, default=50)
    _add(fit, "--samples", "N", "answers sampled for each question of train and dev", type=_count, default=10)
    _add(fit, "--prices", "FILE", "price list", type=Path, default=argparse.SUPPRESS)
    _flag(fit, "--yes", "start after the forecast without asking")
    fit.add_argument("--continue", action="store_true", dest="go_on", help="continue if there is nothing to gain")


def _add_server(parsers: Parsers) -> None:
    check = _command(
        parsers, "check-server", commands.check_server,
        "what a model server can do, and a configuration that works with it",
    )  # fmt: skip
    _add(check, "url", "URL", "address up to and with /v1")
    _add(check, "--model", "NAME", "the model's name on the server, if it serves several")
    _add(check, "--key-env", "VARIABLE", "environment variable that holds the key", default="OPENAI_API_KEY")
    check.add_argument("--timeout", type=_seconds, default=60.0, metavar="SECONDS",
                       help="longest wait for the server (default: 60)")  # fmt: skip
    _add(check, "--samples", "N", "answers per question that sampling will request", type=_count, default=30)
    _add(
        check, "--max-new-tokens", "N", "longest answer that sampling will request, in tokens", type=_count, default=64
    )
    _flag(check, "--allow-empty", "write the configuration although over a fifth of the answers have no text")
    _add(check, "--states", "GATE|MODEL", "compare vLLM's hidden states with a gate's reference, or a local model's")
    _add(check, "--output", "FILE", "configuration to write", default="server.yaml")

    flags = _command(
        parsers, "vllm-args", commands.vllm_args, "flags for vllm serve, to return the hidden states that gates read"
    )
    what = "folder of a probe, a seakr gate or a stack of probes; or a model, for all of its layers"
    _add(flags, "folders", "FOLDER|MODEL", what, nargs="+")


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
_finite = _within(float, -sys.float_info.max, sys.float_info.max, "a finite number")
_seconds = _within(float, math.nextafter(0, 1), 86400, "seconds above 0, a day at most")
_share = _within(float, math.nextafter(0, 1), math.nextafter(1, 0), "a share above 0 and below 1")


def _add_use(parsers: Parsers) -> None:
    decide = _command(parsers, "decide", commands.decide, "a gate's decisions on texts, one JSON line each")
    _add(decide, "folder", "FOLDER", "the gate's folder, or USER/NAME on the hub")
    _add(decide, "--revision", "NAME", "branch, tag or commit of a gate on the hub")
    texts = "questions; without any, or with -: lines of standard input"
    _add(decide, "texts", "TEXT", texts, nargs="*", default=[])
    _add(decide, "--file", "FILE", "file of questions: .csv, or one a line as text or JSON (field question or text)")
    _add(decide, "--field", "NAME", "name of the question's JSON field or .csv column")
    _add(decide, "--key", "NAME", f"{_KEY} (default: the best on dev)")
    _add(decide, "--threshold", "X", "threshold to use instead of the stored one", type=_finite)
    decide.add_argument("--dtype", default="auto", choices=get_args(DtypeName), help="auto: as saved (default)")
    decide.add_argument("--device", default="auto", metavar="auto|cpu|cuda", help="default: auto")

    servers = {
        "serve": (commands.serve, "put a gate in front of a model: an OpenAI-compatible server"),
        "mcp": (commands.mcp, "offer a gate to agents: an MCP server with tools should_search and search"),
    }
    for name, (run, about) in servers.items():
        server = _command(parsers, name, run, about, add_help=False)  # its help is of its keys
        _add(server, "arguments", "FOLDER", "the gate's folder, then settings", nargs=argparse.REMAINDER)

    calibrate = _command(
        parsers, "calibrate", commands.calibrate, "a gate's threshold from the decision log of kbtrain serve"
    )
    _add(calibrate, "folder", "FOLDER", "the gate's folder; its gate.json stores the threshold")
    _add(calibrate, "--log", "FILE", "the log; rotated files are read as well")
    _add(calibrate, "--key", "NAME", _KEY)
    one = calibrate.add_mutually_exclusive_group(required=True)
    _add(one, "--ratio", "SHARE", "share of questions with a search", type=_within(float, 0, 1, "a share from 0 to 1"))
    _flag(one, "--check", "only compare with dev and with the current threshold")
    _flag(one, "--rollback", "restore the threshold before the calibration")
    _flag(calibrate, "--replace", "replace a threshold even if it has a promise")
    _flag(calibrate, "--dry-run", "show the threshold without writing it")
    _add(calibrate, "--prices", "FILE", "price list for the costs", type=Path, default=argparse.SUPPRESS)


def _add_traffic(parsers: Parsers) -> None:
    audit = _command(
        parsers, "audit", commands.audit,
        "judge a sample of logged turns: needless and missed searches, and a proposed threshold, with intervals",
    )  # fmt: skip
    _add(audit, "folder", "FOLDER", "the gate's folder", type=Path)
    _add(audit, "--run", "RUN", "run folder of the audit", type=Path, dest="run_folder")
    _add(audit, "--log", "FILE", "decision log to draw from, written with --log-text", type=Path)
    _add(audit, "--turns", "FILE", "instead of --log: a file of questions, which the gate scores", type=Path)
    _add(audit, "--field", "NAME", "the question's field or column in --turns")
    _add(audit, "--n", "N", "turns to draw", type=_count, default=100)
    _add(audit, "--seed", "N", "seed of the draw", type=_within(int, 0, math.inf, "a whole number from 0"), default=0)
    _add(audit, "--gold", "FILE", "reference answers: columns question and answers", type=Path)
    _add(audit, "--verdicts", "FILE", "the sheet with people's verdicts, filled in from the top", type=Path)
    _add(audit, "--judge", "FILE", "a judge model's verdicts on all turns, in the sheet's format", type=Path)
    audit.add_argument("--goal", choices=("best_accuracy", "max_loss"), default="best_accuracy",
                       help="goal of the proposed threshold (default: best_accuracy)")  # fmt: skip
    _add(audit, "--max-loss", "SHARE", "goal max_loss: largest share of right answers lost against always searching, "
         "promised with probability 0.9 (default: 0.05)", type=_share, default=argparse.SUPPRESS)  # fmt: skip
    _add(audit, "--prices", "FILE", "price list", type=Path, default=argparse.SUPPRESS)
    _flag(audit, "--answer", "answer the drawn turns with the model and settings of the gate's run")
    _flag(audit, "--apply", "store the proposed threshold in the gate's folder")
    _flag(audit, "--replace", "with --apply: store a threshold even if it is not better, or replaces a promise")
    _flag(audit, "--rollback", "restore the threshold before the last applied audit")
    _flag(audit, "--dry-run", "print what would be done without writing anything")
    _add(audit, "--key", "NAME", _KEY)

    value = _command(
        parsers, "value", commands.value,
        "estimated right answers of other gates and thresholds, from the log of kbtrain serve --explore",
    )  # fmt: skip
    _add(value, "folder", "FOLDER", "folder of the gate that decided")
    _add(value, "--log", "FILE", "the log; rotated files are read as well", required=True)
    _add(value, "--threshold", "X", "another threshold to estimate", type=_finite, action="append", default=[])
    others = "another gate to estimate, on questions that it was not trained on; needs a log with texts"
    _add(value, "--gate", "FOLDER", others, action="append", default=[])
    _add(value, "--key", "NAME", _KEY)


def _add_rest(parsers: Parsers) -> None:
    push = _command(parsers, "push", commands.push, "send a gate to the Hugging Face hub, with a model card")
    _add(push, "folder", "FOLDER", "the gate's folder")
    _add(push, "name", "USER/NAME", "its repository; created if it does not exist")
    _flag(push, "--dry-run", "check everything and show files and card without sending")
    _flag(push, "--private", "make the new repository private")
    _add(push, "--base-model", "USER/MODEL", "the answering model's name on the hub")
    _add(push, "--license", "ID", "licence of the gate, in the hub's form: apache-2.0")
    _flag(push, "--no-hashes", "do not send the hashes of the training questions")

    _command(parsers, "env", commands.env, "versions, devices, memory, threads and caches, for a bug report")


if __name__ == "__main__":
    raise SystemExit(main())
