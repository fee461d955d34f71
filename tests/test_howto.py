"""Files and code of the how-tos: an own search, an own gate, the containers, the frameworks' names."""

import json
import re
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from support.scripts import here, load, stage_here

from kbtrain.config import build
from kbtrain.demo import ChainStep, check_gold, finish_own
from kbtrain.errors import UserError
from kbtrain.gates.registry import load_gate
from kbtrain.io import jsonl
from kbtrain.records import Question
from kbtrain.retrieval.web import WebSearch, WebService

DOCS = Path(__file__).resolve().parent.parent / "docs"
SEARCH = (DOCS / "howto" / "own-retriever.md").read_text(encoding="utf-8")


@pytest.fixture
def own_search():
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


def test_the_search_service_of_the_page_is_searched(own_search):
    (address,) = re.findall(r'`url: "(http://127\.0\.0\.1:9201/[^"]*)"`', SEARCH)
    service = WebService(url=address.replace("9201", str(own_search.server_port)))
    (hits,) = WebSearch(service).search(["travel & hotels"], 3)
    assert [(hit.passage_id, hit.title, hit.text) for hit in hits] == [("1", "Travel", "about travel & hotels")]


def test_the_configuration_for_elasticsearch_is_one_of_retrieve(tmp_path):
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", SEARCH, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "elastic.yaml").write_text(text)
    config = build(load("data_gen/retrieve.py").RetrieveConfig, tmp_path / "elastic.yaml", {"run": tmp_path})
    assert config.retriever == "web" and config.web.results == "hits.hits"
    reply = json.loads('{"hits": {"hits": [{"_id": "7", "_score": 2.5, "_source": {"title": "T", "text": "x"}}]}}')
    found = reply
    for name in config.web.results.split("."):
        found = found[name]
    assert found[0][config.web.id] == "7" and config.web.text == "_source.text"


def test_a_run_with_an_own_search_is_finished_without_an_index(own_search, tmp_path, monkeypatch, capsys):
    """The gate of a search that leaves no index of passages here reads the form of the questions alone."""
    run, logs, config = tmp_path / "mine", tmp_path / "logs.jsonl", tmp_path / "elastic.yaml"
    rows = [
        {"question": f"{'Who is' if i % 2 else 'How many are the'} thing {i:03}?", "plain": f"x{i * (i % 2)}",
         "passages": f"x{i}", "answer": f"x{i}"} for i in range(120)
    ]  # fmt: skip
    logs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config.write_text(
        f"retriever: web\nweb: {{url: 'http://127.0.0.1:{own_search.server_port}/find?q={{query}}&k={{k}}'}}"
    )
    shares = ("--shares", ".4,.3,.3", "--answers", "{llm: plain, rag: passages}", "--copied-gold", "allow")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    stages = (("import_answers", "--path", str(logs), "--model", "m", *shares), ("retrieve", "--config", str(config)))
    for name, *arguments in stages:
        done = here(f"data_gen/{name}.py", "--run", run, *arguments)
        assert done.returncode == 0, done.stderr

    monkeypatch.setattr(ChainStep, "run", stage_here)
    finish_own(run, lambda line: None)
    assert "searches" in capsys.readouterr().out
    gate = load_gate(run / "features")
    needless, needed = gate.decide(["Who is thing 500?", "How many are the thing 500?"])
    assert needless.score < needed.score
    assert "No document frequencies" in (run / "features" / "README.md").read_text()
    with pytest.raises(UserError, match=rf"min: no such folder; run folders in {tmp_path}: mine"):
        finish_own(tmp_path / "min", print)


def test_the_linters_of_compose_and_kubernetes_accept_the_files():
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


def test_the_frameworks_page_imports_what_the_adapters_have():
    page = (DOCS / "howto" / "frameworks.md").read_text(encoding="utf-8")
    imports = re.findall(r"^from kbtrain\.adapters\.(\w+) import (\w+)$", page, flags=re.MULTILINE)
    assert len(imports) == 5
    folder = DOCS.parent / "kbtrain" / "adapters"
    for module, name in imports:
        source = (folder / f"{module}.py").read_text(encoding="utf-8")
        assert re.search(rf"^(class|def) {name}\b", source, flags=re.MULTILINE), (module, name)
    for code in re.findall(r"^```py\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE):
        compile(code, "a page", "exec")


def test_questions_without_accepted_answers_are_not_finished_and_the_page_is_named(tmp_path):
    path = tmp_path / "questions.jsonl"
    asked = [Question("a", "Who?", ("Ann",), "train", "d"), Question("b", "Where?", (), "dev", "d", gold="hidden")]
    jsonl.write(path, asked)
    with pytest.raises(UserError, match=r"questions\.jsonl: no reference answers in dev, .*audit\.md"):
        check_gold(path)
    jsonl.write(path, asked[:1])
    check_gold(path)
