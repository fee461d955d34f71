"""Files and code of the how-tos: an own search, an own gate, the containers, the frameworks' names."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from support.scripts import load

from kbtrain.config import build
from kbtrain.records import GateExample
from kbtrain.retrieval.web import WebSearch, WebService

DOCS = Path(__file__).resolve().parent.parent / "docs"
SEARCH = (DOCS / "howto" / "own-retriever.md").read_text(encoding="utf-8")


@pytest.fixture
def own_search() -> Iterator[Any]:
    """The service of the page, running on a free port."""
    (code,) = re.findall(r"^```py\n(.*?)^```$", SEARCH, flags=re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(compile(code.replace("9201", "0"), "own-retriever.md", "exec"), names)
    server = names["server"]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_the_search_service_of_the_page_is_searched(own_search: Any) -> None:
    (address,) = re.findall(r'`url: "(http://127\.0\.0\.1:9201/[^"]*)"`', SEARCH)
    service = WebService(url=address.replace("9201", str(own_search.server_port)))
    (hits,) = WebSearch(service).search(["travel & hotels"], 3)
    assert [(hit.passage_id, hit.title, hit.text) for hit in hits] == [("1", "Travel", "about travel & hotels")]


def test_the_configuration_for_elasticsearch_is_one_of_retrieve(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", SEARCH, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "elastic.yaml").write_text(text)
    config = build(load("data_gen/retrieve.py").RetrieveConfig, tmp_path / "elastic.yaml", {"run": tmp_path})
    assert config.retriever == "web" and config.web.results == "hits.hits"
    reply = json.loads('{"hits": {"hits": [{"_id": "7", "_score": 2.5, "_source": {"title": "T", "text": "x"}}]}}')
    found = reply
    for name in config.web.results.split("."):
        found = found[name]
    assert found[0][config.web.id] == "7" and config.web.text == "_source.text"


def test_the_manifest_for_kubernetes_has_what_the_server_needs() -> None:
    deployment, service = yaml.safe_load_all((DOCS / "serving" / "kubernetes.yaml").read_text(encoding="utf-8"))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    volumes = {volume["name"] for volume in deployment["spec"]["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == labels
    assert container["args"][:2] == ["serve", "/runs/mine/features"] and "--keys" in container["args"]


def test_the_linters_of_compose_and_kubernetes_accept_the_files() -> None:
    """``check-jsonschema`` with compose's own schema, ``kubernetes-validate`` with that of three versions."""
    builtin = pytest.importorskip("check_jsonschema.builtin_schemas")
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    check = jsonschema.Draft202012Validator(builtin.get_builtin_schema("vendor.compose-spec"))
    compose = yaml.safe_load((DOCS / "serving" / "compose.yaml").read_text(encoding="utf-8"))
    assert list(check.iter_errors(compose)) == []
    assert list(check.iter_errors({"services": {"kbtrain": {"imagge": "kbtrain"}}})) != []
    objects = list(yaml.safe_load_all((DOCS / "serving" / "kubernetes.yaml").read_text(encoding="utf-8")))
    for version in ("1.30", "1.33", "1.36"):
        assert [kubernetes_validate.validate(one, version, strict=True) for one in objects] == [version, version]
    objects[1]["spec"]["portz"] = objects[1]["spec"].pop("ports")
    with pytest.raises(kubernetes_validate.ValidationError, match="'portz' was unexpected"):
        kubernetes_validate.validate(objects[1], "1.33", strict=True)


def test_the_frameworks_page_imports_what_the_adapters_have() -> None:
    page = (DOCS / "howto" / "frameworks.md").read_text(encoding="utf-8")
    imports = re.findall(r"^from kbtrain\.adapters\.(\w+) import (\w+)$", page, flags=re.MULTILINE)
    assert len(imports) == 5
    folder = DOCS.parent / "kbtrain" / "adapters"
    for module, name in imports:
        source = (folder / f"{module}.py").read_text(encoding="utf-8")
        assert re.search(rf"^(class|def) {name}\b", source, flags=re.MULTILINE), (module, name)
    for code in re.findall(r"^```py\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE):
        compile(code, "frameworks.md", "exec")


def test_the_gate_of_the_contributing_page_is_fitted_and_opened_again(tmp_path: Path) -> None:
    page = (DOCS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": "length_gate"}
    exec(compile(code, "CONTRIBUTING.md", "exec", dont_inherit=True), names)
    examples = [GateExample.ask(text) for text in ("a", "abc")]
    fitted = names["KIND"].fit(examples, [0.0, 1.0])
    fitted.card.write(tmp_path)
    opened = names["KIND"].open(tmp_path, "auto", "cpu")
    assert fitted.score_examples(examples) == opened.score_examples(examples) == [1.0, 3.0]
