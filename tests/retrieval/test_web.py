"""Web search against a real server on this machine that misbehaves on request."""

from __future__ import annotations

from collections import Counter
from urllib.parse import parse_qs, urlsplit

import pytest
from support.http_server import LocalServer

from kbtrain.errors import UserError
from kbtrain.records import Hit
from kbtrain.retrieval.web import WebSearch, WebService, at_path

SEEN: Counter[str] = Counter()


class SearchServer(LocalServer):
    """Answers by the query: ``fail 503 2`` fails twice with that code before it answers."""

    def reply(self, asked):
        query = parse_qs(urlsplit(asked.path).query)["q"][0]
        SEEN[query] += 1
        words = query.split()
        if words[0] == "fail" and SEEN[query] <= int(words[2]):
            return int(words[1]), "", {"Retry-After": "3"}
        return 200, "<html>" if words[0] == "html" else self.results(query, asked)

    def results(self, query, asked):
        if query == "other shape":
            return {"data": []}
        rows = [{"url": f"u{i}", "name": "T", "text": f"{query} {i}"} for i in range(3)]
        rows += [{"url": "u9", "text": ""}, {"url": "u0", "text": "again"}, {"text": asked.headers.get("X-Key", "-")}]
        return {"web": {"items": rows}}


@pytest.fixture(scope="module")
def address():
    with SearchServer() as server:
        yield f"{server.url}/s?q={{query}}&n={{k}}"


def service(address, **more):
    layout = {"results": "web.items", "title": "name", "text": "text"}
    return WebService.model_validate({"url": address, **layout, "attempts": 3, **more})


def test_results_become_hits_in_the_services_order(address):
    search = WebSearch(service(address))
    first, second = search.search(["Was ist 1+1 & 2?", "zwei"], 2)
    assert first == (Hit("u0", "T", "Was ist 1+1 & 2? 0", 1.0), Hit("u1", "T", "Was ist 1+1 & 2? 1", 0.5))
    assert [hit.text for hit in second] == ["zwei 0", "zwei 1"]
    assert search.dropped == 4  # no text, an id twice, of each reply
    ((unscored, *_),) = WebSearch(service(address, score="name")).search(["drei"], 2)
    assert unscored == Hit("u0", "T", "drei 0", 1.0)  # its score is a text: the rank's


def test_a_key_comes_from_the_environment(address, monkeypatch):
    monkeypatch.setenv("SEARCH_KEY", "key-of-the-search")
    made = service(address, headers={"X-Key": "SEARCH_KEY"})
    (hits,) = WebSearch(made).search(["key"], 9)
    assert hits[-1].text == "[secret]"  # it was sent; what the service echoes of it is struck
    assert "key-of" not in made.model_dump_json()
    monkeypatch.delenv("SEARCH_KEY")
    with pytest.raises(UserError, match=r"header .*: the environment variable that it names is not set"):
        WebSearch(made)


def test_failures_that_pass_are_tried_again_after_the_wait_that_is_asked_for(address):
    waits: list[float] = []
    search = WebSearch(service(address), sleep=waits.append)
    assert len(search.search(["fail 503 2"], 3)[0]) == 3
    assert SEEN["fail 503 2"] == 3 and waits == [3.0, 3.0]


@pytest.mark.parametrize(
    ("query", "message", "times"),
    [
        ("fail 429 9", "HTTP 429; finished questions are kept", 3), ("fail 403 9", "HTTP 403", 1),
        ("fail 302 9", "HTTP 302", 1), ("html", "no JSON in the reply", 3),
        ("other shape", "no list at 'web.items' of the reply", 1),
    ],
)  # fmt: skip
def test_what_does_not_pass_is_one_line(address, query, message, times):
    with pytest.raises(UserError, match=message):
        WebSearch(service(address), sleep=lambda _: None).search([query], 3)
    assert SEEN[query] == times


def test_paths():
    assert at_path({"a": [{"b": 1}]}, "a.0.b") == 1
    assert at_path({"a": [1]}, "a.3") is None and at_path("x", "a") is None
