"""The dashboard, Prometheus' file and the containers beside docs/reference/serving.md name what exists."""

import json
import re
from pathlib import Path

import yaml
from prometheus_client import Counter, Gauge, Histogram
from support.scripts import load

from kbtrain.config import parse_args
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.decision_log import Metrics

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
        filtered = re.findall(r"[{,]\s*(\w+)\s*=", query)
        assert {*by, *filtered} <= labels, query
        shown = re.findall(r"histogram_quantile", query)
        assert not shown or "le" in by, query


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
    command = SERVICES["embed"]["command"]
    assert command[:2] == ["run", "embed"]
    embed = parse_args(load("data_gen/embed.py").EmbedConfig, command[2:])
    assert Path(config.search) == Path(embed.run) / "vectors" and config.gate.parent == Path(embed.run)
    hosts = {re.match(r"http://(\w+):", url)[1] for url in (embed.server_url,)}
    assert hosts <= set(SERVICES)
    assert embed.server_model in SERVICES["embeddings"]["command"]


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
