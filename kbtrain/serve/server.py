"""The process: settings, HTTP server, signals. ``kbtrain serve`` ends here."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kbtrain.errors import UserError, require
from kbtrain.gate.card import KeyedCard
from kbtrain.gates.registry import folder_of
from kbtrain.io.provenance import sampling_of_labels
from kbtrain.net import split_query
from kbtrain.runtime.cores import freeze_objects
from kbtrain.serve.config import ASK_IT, NO_SEARCH, ServeConfig
from kbtrain.serve.exchange import place_of
from kbtrain.serve.gate_model import is_of_demo
from kbtrain.serve.request_forms import asks_whole

if TYPE_CHECKING:
    import uvicorn

    from kbtrain.serve.decide import LoadedGate
    from kbtrain.serve.service import Service

BACKLOG = 2048  # connections that wait to be taken
# connections taken in one turn of the event loop: without descriptors asyncio sets a timer for each failed try
ACCEPTED = 1
LINGER = 5.0  # seconds for requests that were cancelled at the end of the process
logger = logging.getLogger("kbtrain.serve")


def run(config: ServeConfig, say: Callable[[str], None]) -> None:
    """Serve until a signal ends it; SIGHUP opens the gate's folder again. Raises :class:`UserError`."""
    for package in ("aiohttp", "httptools", "prometheus_client", "starlette", "uvicorn"):
        require(package, "serve")
    from kbtrain.serve.service import Service

    config = config.model_copy(update={"gate": folder_of(config.gate, config.revision)})

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(OncePerSecond())
    listening = listen(config.host, config.port)
    say(f"opening {config.gate} ...")
    service = Service(config)
    sys.setswitchinterval(0.001)  # the gate's thread lets the event loop in sooner
    name = f"[{config.host}]" if ":" in config.host else config.host
    for line in startup_lines(service):
        say(line)
    server = http_server(service)
    signal.signal(signal.SIGHUP, lambda *_: reload(service))  # before the line that announces the server
    end_on_signals(server)
    freeze_objects()
    listening.listen(BACKLOG)  # clients may connect at the next line, before the event loop runs
    say(f"{service.decider.loaded.name} answers at http://{name}:{listening.getsockname()[1]}/v1")
    asyncio.run(_serve(service, server, listening, say))


def startup_lines(service: Service) -> list[str]:
    """Lines about what was opened: gate and key, threshold and its figures, the cost of a decision, prompt, search."""
    config, loaded = service.config, service.decider.loaded
    lines = [f"gate {loaded.name}{_key_in_words(config, loaded)}", *_threshold_lines(service)]
    if config.threshold is None and loaded.gate.promise:
        lines.append(f"promised: {loaded.gate.promise}")
    spent = {what.replace("_", " "): count for what, count in loaded.gate.spent.items()}
    if spent.get("requests"):
        each = ", ".join(f"{count / spent['requests']:.0f} {what}" for what, count in spent.items() if count)
        lines.append(f"one decision of this gate costs {each}")
    if config.upstream is not None and is_of_demo(config.gate):
        lines.append(
            "warning: this gate was trained on the demo's questions and the answers of its 135M model and is not valid "
            "for other models; train one on your own questions (`kbtrain fit`)"
        )
    if service.upstream is not None:
        lines.append(f"prompt: {_prompt_in_words(config, loaded)}")
        lines.append(f"search: {service.search.name if service.search else 'none'}; passages: {service.decider.k}")
        if config.policy != "gate":
            nothing = "the server does not search; " if config.policy in NO_SEARCH else ""
            lines.append(f"policy {config.policy}: {nothing}the log says what the gate would do (would_search)")
    else:
        lines.append("no model: this server only decides (/v1/gate); for answers add --upstream URL or --model NAME")
    if loaded.after_search:
        lines.append("the gate reads the passages: it saves tokens in prompts, but no searches")
    return lines


def _key_in_words(config: ServeConfig, loaded: LoadedGate) -> str:
    """The label that decides, and why this one; empty for a gate of a single label."""
    card = loaded.gate.card
    if not isinstance(card, KeyedCard) or len(card.keys) == 1 or loaded.gate.name not in card.names():
        return ""
    key = card.keys[card.names().index(loaded.gate.name)]
    if config.key is not None:
        return f", key {key} (--key)"
    if card.best is None or card.best.key != key:
        return f", key {key} (the first one: no evaluation has stored the best; run eval/end_to_end.py)"
    return f", key {key} ({card.best.rule}, {card.best.n_dev} questions)"


def _threshold_lines(service: Service) -> list[str]:
    """The threshold, its rule, its share of searches on dev; and its figures on test."""
    config, loaded = service.config, service.decider.loaded
    threshold = loaded.threshold
    if threshold is None:
        return [f"no threshold: policy {config.policy} records scores; choose one on them: kbtrain calibrate (--log)"]
    card = loaded.gate.card
    chosen = card.thresholds.get(loaded.gate.name) if card and config.threshold is None else None
    origin = "--threshold" if chosen is None else f"rule {chosen.rule}"
    name = "threshold" if config.policy == "gate" else "threshold of the logged decision"
    remedy = "" if chosen is None else " (eval/end_to_end.py --threshold-rule given)"
    figures = f"its savings on test questions are not measured{remedy}"
    if chosen is not None and chosen.test is not None:
        figures = chosen.test.line()
    where = "logged" if chosen is not None and "traffic" in chosen.evidence else "dev"
    return [f"{name} {_threshold_in_words(loaded, threshold, origin, where)}", figures]


def _threshold_in_words(loaded: LoadedGate, threshold: float, origin: str, where: str) -> str:
    """The number with its share of searches on dev; without it where it is below or above every score."""
    n, certain = len(loaded.dev_scores), loaded.gate.unit == "probability"
    share = sum(score > threshold for score in loaded.dev_scores) / n if n else None
    if share == 1 or (certain and threshold < 0):
        return f"({origin}): always searches"
    if share == 0 or (certain and threshold >= 1):
        return f"({origin}): never searches"
    searched = "" if share is None else f": searches for {share:.0%} of the {where} questions"
    return f"{threshold:.3g} ({origin}){searched}"


def _prompt_in_words(config: ServeConfig, loaded: LoadedGate) -> str:
    if asks_whole(config.prompt, loaded.own):
        whose = "the templates" if loaded.own is not None else "figures 9 and 10 of the KBM paper, the prompts"
        return f"{whose} that the gate's labels were made with{_fields_in_words(config)}"
    advice = f"those of the labels are not known: {ASK_IT}"
    if loaded.prompts_known:
        advice = "the gate learned with another prompt: where clients send single questions, add --prompt trained"
    return f"passages by --injection {config.injection} (--prompt background); {advice}"


def _fields_in_words(config: ServeConfig) -> str:
    """The fields that ended the labels' answers, which the server adds to no request; empty without the run's note."""
    sampled = sampling_of_labels(config.gate.resolve().parent)
    thought = sampled.get("max_thought_tokens", 0)  # beside it no stop string was sent
    fields = {"stop": not thought and sampled.get("stop"), "max_tokens": sampled.get("max_new_tokens", 0) + thought}
    named = ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items() if value)
    return f"; to get answers like these, clients send {named}" if named else ""


def reload(service: Service) -> None:
    """Open the gate's folder again, while requests are served."""

    def work() -> None:
        service.metrics.reloads.labels("done" if service.decider.reload() else "failed").inc()
        freeze_objects(again=True)

    threading.Thread(target=work, name="reload", daemon=True).start()


def end_on_signals(server: uvicorn.Server) -> None:
    """Let the server finish. uvicorn takes the first signal itself and raises it once more when it has finished, which
    would end the process before anything else is closed; a second one does."""

    def end(number: int, _: object) -> None:
        server.should_exit = True
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


async def _serve(
    service: Service, server: uvicorn.Server, listening: socket.socket, say: Callable[[str], None]
) -> None:
    asyncio.get_running_loop().set_exception_handler(log_loop_error)
    trying = asyncio.create_task(try_upstream(service, say))  # requests are answered meanwhile
    try:
        await server.serve(sockets=[listening])
    finally:
        trying.cancel()
        await service.close()


async def try_upstream(service: Service, say: Callable[[str], None]) -> None:
    """Warn once, in one line, of an upstream that does not list its models: it may be started later."""
    check, url = service.upstream_check, service.config.upstream
    if check is not None and url is not None and (problem := await check.problem()) is not None:
        say(f"warning: {split_query(url)[0]}: {problem}; /ready says when it answers")


def http_server(service: Service) -> uvicorn.Server:
    """uvicorn around the application, without its name in answers and without an access log."""
    import uvicorn

    from kbtrain.serve.app import application
    from kbtrain.serve.protocol import GuardedProtocol

    # an answer that is cut off as the upstream's was is no error: a warning reports it
    cut = "ASGI callable returned without completing response."
    logging.getLogger("uvicorn.error").addFilter(lambda record: record.getMessage() != cut)
    settings = uvicorn.Config(
        application(service),
        # the other half of the descriptors is for the upstream, the search and files
        http=GuardedProtocol.within(service.config.read_timeout_s, raise_open_files() // 2),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here reads the client's address
        timeout_keep_alive=30,
        timeout_graceful_shutdown=20,
        backlog=ACCEPTED,
    )

    class GateServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            for listening in sockets or ():
                listening.listen(BACKLOG)  # uvicorn sets the queue's length to what asyncio takes in one turn

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await super().shutdown(sockets)
            if self.server_state.tasks:  # cancelled: each still writes its line of the decision log
                await asyncio.wait(self.server_state.tasks, timeout=LINGER)

    return GateServer(settings)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises :class:`UserError`; before the gate is opened, so that a port in use is an early error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # the protocol by its number, else asyncio leaves Nagle's algorithm on: 40 ms before the second piece of an answer
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise UserError(f"{host}:{port}: cannot be listened on ({error.strerror}); choose another --port") from None
    return listening


MOST_MESSAGES = 1000  # that the log's limit remembers; messages of libraries may hold addresses
OUT_OF_DESCRIPTORS = {errno.EMFILE, errno.ENFILE}


class OncePerSecond(logging.Filter):
    """Pass one record of a message a second; the next record has the number of skipped ones.

    Messages differ by the first line of their format; those of the format "%s" by the value.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, str], float] = {}
        self._skipped: dict[tuple[str, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """True for a record to write; it gets the number of skipped ones."""
        text = record.getMessage() if record.msg == "%s" else str(record.msg)
        key = record.name, text.partition("\n")[0]
        last = self._last.get(key)
        if last is not None and 0 <= record.created - last < 1:
            self._skipped[key] = self._skipped.get(key, 0) + 1
            return False
        if len(self._last) >= MOST_MESSAGES:
            self._last.clear()
        self._last[key] = record.created
        if skipped := self._skipped.pop(key, 0):
            record.msg, record.args = f"{record.getMessage()} ({skipped} more since)", ()
        return True


def log_loop_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that reached the event loop: its type and traceback, without its message, which may hold texts."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS:
        logger.error("no file descriptor is left (%s): new connections wait; raise `ulimit -n`", error.strerror)
    elif error is None:
        logger.error("event loop: %s", str(context.get("message")).partition("\n")[0])
    else:
        logger.error("event loop: %s\n%s", type(error).__name__, place_of(error))


MOST_OPEN_FILES = 65_536  # enough, where the system would allow millions


def raise_open_files() -> int:
    """Raise the soft limit to the hard one, as far as :data:`MOST_OPEN_FILES`; the limit after it.

    A proxied request needs two open files, and systems start programs with few.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < top:
        for limit in (top, 10_240):  # macOS takes no more than its OPEN_MAX where the hard limit is infinite
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
                break
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN_FILES if soft == resource.RLIM_INFINITY else soft
