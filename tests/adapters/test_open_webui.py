"""The filter for Open WebUI, loaded and called as Open WebUI 0.12.4 does, against a real server of a gate.

KBTRAIN_OPEN_WEBUI names a wheel of Open WebUI (``make test-adapters`` fetches it): its own code runs the filter, too.
"""

import ast
import asyncio
import inspect
import os
import re
import sys
import types
import zipfile
from pathlib import Path

import pytest
from pydantic import ValidationError
from serve_support import KNOWN, NEEDS

FILE = Path(__file__).parents[2] / "kbtrain" / "adapters" / "kbtrain_filter.py"
COLLECTION, ATTACHED = {"type": "collection", "id": "c"}, {"type": "file", "id": "f"}


def loaded(**valves):
    """The filter as ``load_function_module_by_id`` makes it, with valves as ``apply_filter_valves`` sets them."""
    name = "function_kbtrain_gate"
    module = types.ModuleType(name)
    sys.modules[name] = module
    try:
        exec(FILE.read_text(encoding="utf-8"), module.__dict__)
        made = module.Filter()
        made.valves = made.Valves(**valves)
    finally:
        del sys.modules[name]
    return made


def called(made, body, **extra):
    """``process_filter_function``: parameters by the handler's names, awaited where it is a coroutine."""
    handler, extra = made.inlet, {"__user__": {"id": "u"}, "__metadata__": {}, "__request__": None, **extra}
    names = inspect.signature(handler).parameters
    found = handler(body=body, **{name: value for name, value in extra.items() if name in names})
    return asyncio.run(found) if inspect.iscoroutinefunction(handler) else found


@pytest.fixture
def filtered(server):
    def run(body, events=None, **valves):
        made = loaded(url=server.url, key="a-key-of-the-tests", timeout_s=30, **valves)

        async def emit(event):
            events.append(event)

        return called(made, body, **({} if events is None else {"__event_emitter__": emit}))

    return run


def chat(text, **fields):
    return {"model": "m", "messages": [{"role": "user", "content": text, "id": "1", "files": []}], **fields}


def test_web_search_is_switched_as_the_gate_decides(filtered):
    assert filtered(chat(NEEDS, features={"web_search": False, "memory": True}))["features"] == {
        "web_search": True,
        "memory": True,
    }
    assert filtered(chat(KNOWN, features={"web_search": True}))["features"] == {"web_search": False}
    assert filtered(chat(NEEDS))["features"] == {"web_search": True}


def test_web_search_may_only_be_switched_off_or_left(filtered):
    assert "features" not in filtered(chat(NEEDS), web_search="only off")
    assert filtered(chat(KNOWN, features={"web_search": True}), web_search="only off")["features"] == {
        "web_search": False
    }
    assert filtered(chat(KNOWN, features={"web_search": True}), web_search="leave")["features"]["web_search"]


def test_knowledge_is_taken_out_where_no_search_is_needed_and_attached_files_stay(filtered):
    both = [COLLECTION, ATTACHED, {"id": "k", "legacy": True}]
    assert filtered(chat(KNOWN, files=both, metadata={"files": both}))["files"] == [ATTACHED]
    assert filtered(chat(KNOWN, files=both, metadata={"files": both}))["metadata"]["files"] == [ATTACHED]
    assert filtered(chat(NEEDS, files=both))["files"] == both
    assert filtered(chat(KNOWN, files=both), knowledge="all")["files"] == []
    assert filtered(chat(KNOWN, files=both), knowledge="leave")["files"] == both


def test_a_picture_passes_as_it_came_and_is_not_sent_to_the_gate(filtered, server):
    parts = [{"type": "text", "text": KNOWN}, {"type": "image_url", "image_url": {"url": "data:" + "x" * 9_000_000}}]
    body = chat(parts, features={"web_search": True})
    assert filtered(dict(body)) == body


def test_the_decision_is_said_above_the_answer(filtered):
    events = []
    filtered(chat(NEEDS), events, status=True)
    (event,) = events
    assert event["type"] == "status" and re.fullmatch(
        r"kbtrain: search \(score [\d.]+, threshold 0\.5\)", event["data"]["description"]
    )


@pytest.mark.parametrize("on_failure, expected", [("leave", None), ("retrieve", True), ("plain", False)])
@pytest.mark.parametrize("why", ["no server", "no key"])
def test_without_a_decision_the_setting_holds(server, why, on_failure, expected):
    url = "http://127.0.0.1:9" if why == "no server" else server.url
    body = called(loaded(url=url, key="not-the-key-of-it", on_failure=on_failure), chat(NEEDS, files=[COLLECTION]))
    assert body.get("features", {}).get("web_search") is expected
    assert body["files"] == ([] if expected is False else [COLLECTION])


def test_a_setting_that_is_none_is_refused_by_the_form():
    for wrong in ({"url": "127.0.0.1:8000"}, {"on_failure": "maybe"}, {"timeout_s": 0}):
        with pytest.raises(ValidationError):
            loaded(**wrong)


@pytest.fixture
def own_code(monkeypatch):
    """``open_webui.utils.filter`` of a real wheel; its database, settings and cache of functions are ours."""
    if "KBTRAIN_OPEN_WEBUI" not in os.environ:
        pytest.skip("KBTRAIN_OPEN_WEBUI is not set; run: make test-adapters")
    made, stored = loaded(), {}

    class Functions:
        @staticmethod
        async def get_function_valves_by_ids(ids):
            return dict.fromkeys(ids, stored)

    async def from_cache(*_, **__):
        return made, None, None

    parts = {"env": {"ENABLE_FUNCTIONS": True}, "models.functions": {"Functions": Functions}}
    parts["utils.plugin"] = {"get_function_module_from_cache": from_cache}
    for name, content in {"": {}, "models": {}, "utils": {}, **parts}.items():
        module = types.ModuleType(f"open_webui.{name}".rstrip("."))
        module.__dict__.update(content, __path__=[])
        monkeypatch.setitem(sys.modules, module.__name__, module)
    real = types.ModuleType("open_webui.utils.filter")
    with zipfile.ZipFile(os.environ["KBTRAIN_OPEN_WEBUI"]) as wheel:
        exec(wheel.read("open_webui/utils/filter.py").decode(), real.__dict__)
    return real, stored


def test_open_webuis_own_code_runs_the_filter_through_both_branches(own_code, server):
    real, stored = own_code
    stored.update(url=server.url, key="a-key-of-the-tests", timeout_s=30)
    function, extra = types.SimpleNamespace(id="kbtrain"), {"__user__": {"id": "u"}, "__metadata__": {}}
    for text, searched in ((NEEDS, True), (KNOWN, False)):
        body = chat(text, features={"web_search": not searched}, files=[COLLECTION, ATTACHED])
        found, _ = asyncio.run(real.process_filter_functions(None, None, [function], "inlet", body, dict(extra)))
        assert found["features"]["web_search"] is searched
        assert found["files"] == ([COLLECTION, ATTACHED] if searched else [ATTACHED])


def test_the_file_stands_alone_and_begins_with_what_the_form_reads():
    text = FILE.read_text(encoding="utf-8")
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {(alias.name if isinstance(node, ast.Import) else node.module) for node in nodes for alias in node.names}
    assert {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names) == {"pydantic"}
    assert text.startswith('"""\n')
    head = dict(re.findall(r"^([a-z_]+): (.+)$", text.split('"""')[1], flags=re.M))
    assert {"title", "author", "version", "license", "description", "required_open_webui_version"} == set(head)
