"""Pages about the server: their commands are read, their requests answered, by a tiny gate and a tiny model."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from prometheus_client import Counter, Gauge, Histogram
from serve_support import serving
from support.scripts import load
from tiny_kbm import make_folder

from kbtrain.cli import _arguments
from kbtrain.config import parse_args
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.decision_log import Metrics
from kbtrain.serve.service import RequestTrace

DOCS = Path(__file__).resolve().parents[2] / "docs"
NAMES = (
    *("howto/serve.md", "howto/search-tools.md", "howto/monitor.md"),
    *("howto/frameworks.md", "howto/agents.md", "reference/serving.md", "tutorials/serve.md"),
)
PAGE = "\n".join((DOCS / name).read_text(encoding="utf-8") for name in NAMES).replace("\\\n", " ")
PAGE = re.sub("^kbtrain run .*$", "", PAGE, flags=re.MULTILINE)  # options of scripts: tests/test_readme.py
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT.replace("\\\n", " "), flags=re.DOTALL | re.MULTILINE)
LINES = [line for language, block in BLOCKS if language in ("", "text") for line in block.splitlines()]
COMMANDS = [
    shlex.split(line, comments=True)
    for line in LINES
    if re.match(r"kbtrain (?!run |vllm-args\b)[a-z][a-z-]+( |$)", line)
]  # those of scripts: tests/test_readme.py
REQUESTS = [shlex.split(block) for language, block in BLOCKS if language == "sh"]


@pytest.fixture(scope="module")
def running(gate, tmp_path_factory):
    with serving(
        gate, model=str(make_folder(tmp_path_factory.mktemp("m") / "tiny")), search="serve_support:echo"
    ) as server:
        yield server


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_takes_its_arguments(command):
    args = _arguments(command[1:])
    if command[1] == "serve":
        config = parse_args(ServeConfig, [f"gate={args.arguments[0]}", *args.arguments[1:]])
        assert str(config.gate).startswith("runs/demo/" if config.model else "runs/mine/")


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda words: words[-1][:40])
def test_a_request_is_answered(running, request_):
    url = next(word for word in request_ if word.startswith("http://"))
    headers = dict(request_[i + 1].split(": ") for i, word in enumerate(request_) if word == "-H")
    body = request_[request_.index("-d") + 1].encode()
    reply = running.ask("POST", url.removeprefix("http://127.0.0.1:8000"), body, headers)
    assert reply.status == 200, reply.body
    assert len(REQUESTS) == 7


@pytest.mark.parametrize("package, said", [("openai", 1), ("langchain_openai", 2)])
def test_the_client_s_code_runs(running, capsys, package, said):
    pytest.importorskip(package)
    (code,) = (block for language, block in BLOCKS if language == "py" and f"from {package} " in block)
    code = code.replace("http://127.0.0.1:8000", running.url).replace('"smollm2-135m-instruct"', "NAME")
    exec(compile(code, "a page", "exec"), {"NAME": running.service.config.model})
    lines = capsys.readouterr().out.splitlines()
    assert [line[:2] for line in lines if line[:2] in {"0 ", "1 "}] and len(lines) >= said


def test_every_header_setting_and_metric_that_is_named_exists():
    names = ("retrieve", "threshold", "budget", "tool", "debug", "saves", "source")
    headers = {f"x-kbtrain-{name}" for name in names}
    seconds = {"gate_seconds": 1.0, "search_seconds": 1.0}
    trace = RequestTrace("x", "forced", query="q", context="window", request_id="r", **seconds)
    headers |= set(trace.headers("g")) | {"x-kbtrain-score"}
    assert set(re.findall(r"x-kbtrain-[\w-]+\w", PAGE)) <= headers
    keys = ServeConfig.model_fields
    settings = {name.replace("_", "-") for name in keys} | {"check", "ratio", "replace", "rollback", "dry-run"}
    embeds = {name.replace("_", "-") for name in load("data_gen/embed.py").EmbedConfig.model_fields}
    measures = {"clients", "hold", "tokens", "requests"}  # of benchmarks/serving.py
    others = {"build", "config", "retriever", "tools"}  # docker's, Prometheus', retrieve.py's, import_decisions.py's
    assert set(re.findall(r"--([a-z][\w-]+)", PAGE)) <= settings | embeds | measures | others
    known = {metric.name for metric in Metrics().registry.collect()}
    assert {re.sub("_total$", "", name) for name in re.findall(r"kbtrain_\w+\b(?!\.)", PAGE)} <= known


ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "serving"
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]


def series():
    """Labels of each series that ``/metrics`` can show, by its name."""
    found = {}
    for metric in vars(Metrics()).values():
        if isinstance(metric, Counter | Gauge | Histogram):
            (family,) = metric.describe()
            labels = set(metric._labelnames)
            if isinstance(metric, Histogram):
                found |= {f"{family.name}_{part}": labels for part in ("sum", "count")}
                found[f"{family.name}_bucket"] = labels | {"le"}
            else:
                found[f"{family.name}_total" if isinstance(metric, Counter) else family.name] = labels
    return found


def test_every_query_names_a_series_and_its_labels():
    known = series()
    assert len(QUERIES) > 15
    for query in QUERIES:
        named = re.findall(r"kbtrain_\w+", query)
        assert named and set(named) <= set(known), query
        labels = {one for name in named for one in known[name]}
        by = [one.strip() for group in re.findall(r"by \(([^)]*)\)", query) for one in group.split(",")]
        assert {*by, *re.findall(r"[{,]\s*(\w+)\s*=", query)} <= labels, query
        assert not re.findall(r"histogram_quantile", query) or "le" in by, query


def test_every_metric_of_the_server_is_on_the_dashboard():
    named = {
        re.sub("_(total|bucket|sum|count)$", "", name)
        for query in QUERIES
        for name in re.findall(r"kbtrain_\w+", query)
    }
    assert named == {re.sub("_(total|bucket|sum|count)$", "", name) for name in series()}


def test_the_containers_commands_are_real_ones():
    command = SERVICES["kbtrain"]["command"]
    assert command[0] == "serve"
    config = parse_args(ServeConfig, [f"gate={command[1]}", *command[2:]])
    assert (config.host, str(config.keys), config.port) == ("0.0.0.0", "/run/secrets/key", 8000)
    assert SERVICES["kbtrain"]["ports"] == [f"127.0.0.1:8000:{config.port}"]


def test_what_containers_wait_for_mount_and_read_is_there():
    for name, service in SERVICES.items():
        assert set(service.get("depends_on", {})) <= set(SERVICES), name
        assert {one["source"] for one in service.get("configs", [])} <= set(COMPOSE["configs"]), name
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"]), name
        for volume in service.get("volumes", []):
            source = volume.rpartition(":/")[0] if not volume.endswith(":ro") else volume.split(":")[0]
            assert source in COMPOSE["volumes"] or source.startswith("${") or (FOLDER / source).is_file(), volume
    build = COMPOSE["x-kbtrain"]["build"]
    assert (FOLDER / build["context"]).resolve() == ROOT
    copied = re.findall(r"^COPY (\S+)", build["dockerfile_inline"], flags=re.M)
    assert all((ROOT / name).exists() for name in copied)
    assert "docs/serving/key.txt" in (ROOT / ".dockerignore").read_text().split()
    assert "docs/serving/key.txt" in (ROOT / ".gitignore").read_text().split()
