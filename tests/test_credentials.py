"""Keys come from the environment and are shown nowhere: no error, no meta file, no stored answer holds one."""

import html
import json
import urllib.parse
from typing import Any

import pytest

from kbtrain import errors
from kbtrain.config import build, parse_args
from kbtrain.errors import UserError, never_show, strike, strike_all
from kbtrain.io.provenance import write_atomically
from kbtrain.io.store import SampleStore
from kbtrain.llm.backends import LLMConfig
from kbtrain.llm.server_requests import read_error
from kbtrain.net import check_url, hide_values, key_from_environment
from kbtrain.retrieval.web import WebSearch, WebService
from kbtrain.serve.config import ServeConfig


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests(monkeypatch):
    monkeypatch.setattr(errors, "_SECRETS", set())
    yield


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("sk-planted-key\r", "character 15 of the key is a line end"),
        ("sk-planted-key\n", "character 15 of the key is a line end"),
        ("sk planted-key", "character 3 of the key is a space"),
        ("sk-plänted-key", "character 6 of the key is no ASCII character"),
    ],
)
def test_a_key_that_no_header_can_carry_is_said_to_be_so_without_its_text(key, problem, monkeypatch):
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(UserError, match=problem) as caught:
        key_from_environment("MY_KEY")
    assert "nted-key" not in str(caught.value)


def test_a_key_is_struck_from_errors_files_and_stores(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "")
    assert key_from_environment("MY_KEY") is None and key_from_environment("NOT_SET") is None
    monkeypatch.setenv("MY_KEY", "sk-planted-key")
    assert key_from_environment("MY_KEY") == "sk-planted-key"
    assert str(UserError("server said: Bearer sk-planted-key")) == "server said: Bearer [secret]"
    write_atomically(tmp_path / "meta.json", json.dumps({"header": "sk-planted-key"}))
    with SampleStore(tmp_path / "samples.db") as store:
        store.begin("main", {"extra": "sk-planted-key"})
        store.begin("main", {"extra": "sk-planted-key"})  # the same run, though the stored text is another
    assert not any(b"sk-planted" in path.read_bytes() for path in tmp_path.iterdir())


def test_the_longest_secret_is_struck_first():
    never_show("abcd-efgh")
    never_show("abcd-efgh-ijkl")
    assert strike("abcd-efgh-ijkl abcd-efgh abcd") == "[secret] [secret] abcd"


@pytest.mark.parametrize("text", ["short", "sortable", "a1", "0.731234", "2026-11-23", "retrieval", "1234567890123"])
def test_a_word_or_a_number_is_no_key_and_never_struck(text, monkeypatch):
    """A report lost its tables' class, a word that had come as a key."""
    for name, value in (("MY_KEY", text), ("OTHER", text.upper())):
        monkeypatch.setenv(name, value)
        with pytest.raises(UserError, match=f"environment variable {name}: expected a key of 8 or more") as caught:
            key_from_environment(name)
        assert text not in str(caught.value)
    with pytest.raises(UserError, match="key 'web': parameter 'api_key': expected a key of 8") as caught:
        check_url(f"http://host/search?api_key={text}", "web")
    with pytest.raises(UserError, match="key 'server_extra': field 'password': expected a key of 8"):
        hide_values({"deep": [{"password": text}]}, "server_extra")
    with pytest.raises(UserError, match="holds a name or a password"):
        check_url(f"http://{text}:{text}@host/", "web")
    hide_values({"eos_token": text, "cache_key": text}, "server_extra")
    page = f'<table class="sortable short"><td>{text} of them'
    assert strike(page) == page


@pytest.mark.parametrize("key", ["EMPTY", "none", "ollama", "lm-studio", "sk-no-key-required"])
def test_what_servers_without_keys_are_given_is_sent_and_no_secret(key, monkeypatch):
    monkeypatch.setenv("MY_KEY", key)
    assert key_from_environment("MY_KEY") == key
    hide_values({"api_key": key}, "server_extra")
    assert strike(f"is {key}") == f"is {key}"


@pytest.mark.parametrize(
    "key", ["sk-planted-key", "hunter22", "correcthorsebatterystaple", "9/&<\"\\'>a", "0123456789012345"]
)
def test_a_key_is_struck_however_a_file_spells_it(key, monkeypatch):
    monkeypatch.setenv("MY_KEY", key)
    assert key_from_environment("MY_KEY") == key
    for spelt in (key, json.dumps({"x": key}), html.escape(key), urllib.parse.quote(key, safe=""), f"token={key}x"):
        assert "[secret]" in strike(spelt) and key not in strike(spelt)
    escaped = json.dumps({"said": [key]}).replace("/", "\\/")  # as some servers spell a slash
    assert strike_all(json.loads(escaped)) == {"said": ["[secret]"]}


NAMED, EXTRA = "the address holds a name or a password", "key 'server_extra': expected a mapping"


@pytest.mark.parametrize(
    ("option", "text", "problem"), [ ("url", "http://me:sk-planted@host/v1", NAMED),
    ("url", "me:sk-planted@host/v1", NAMED), ("url", "http://me%3Ask-planted%40host/v1", NAMED),
    ("url", "http://host:sk-planted/v1", "no valid address"),
    ("url", "http:/me:sk-planted@host", "begins with http:// or https://"),
    ("url", "sk-planted", "begins with http:// or https://"), ("url", "http://[sk-planted/v1", "no valid address"),
    ("url", "http:///sk-planted", "no valid address"), ("extra", "{api_key: sk-planted-key", EXTRA),
    ("extra", "api_key=sk-planted-key", EXTRA), ("extra", "[api_key, sk-planted-key]", EXTRA), ],
)  # fmt: skip
def test_what_may_hold_a_key_is_not_repeated_by_an_error(option, text, problem):
    with pytest.raises(UserError, match=f"{'' if problem == EXTRA else 'server_url.*'}{problem}") as caught:
        parse_args(LLMConfig, [f"--server-{option}", text])
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("key", ["search_mapping", "search"])
def test_what_a_search_is_asked_with_is_not_repeated_by_an_error(key):
    planted = [{"headers": {"x-api-key": "sk-planted-key"}}]
    with pytest.raises(UserError, match=f"key '{key}'") as caught:
        build(ServeConfig, None, {"gate": "gate", key: planted})
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("held", [["sk-planted-key"], {"value": "sk-planted-key"}, [{"of": ["sk-planted-key"]}]])
def test_what_a_secret_field_holds_is_secret_at_any_depth(held):
    hide_values({"extra": {"api_key": held}}, "server_extra")
    assert strike("is sk-planted-key") == "is [secret]"


@pytest.mark.parametrize("name", ["sk-planted-key", "$MY_KEY", "MY_KEY=sk-planted-key", "Bearer sk-planted-key", ""])
def test_a_key_in_the_place_of_its_variable_s_name_is_not_repeated(name):
    with pytest.raises(UserError, match="expected the name of the environment variable") as caught:
        key_from_environment(name)
    assert "planted" not in str(caught.value)
    with pytest.raises(UserError, match="header 'X-Key': the environment variable that it names is not set") as caught:
        WebSearch(WebService(url="http://host/?q={query}", headers={"X-Key": "sk-planted-key"}))
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("before", range(30, 220, 38))
def test_a_key_that_is_cut_off_in_a_server_s_message_is_struck_all_the_same(before):
    never_show("sk-planted-key")
    said = "." * before + "sk-planted-key" * 3
    for text in (said, json.dumps({"error": {"message": said}}), json.dumps({"error": [said]})):
        assert "sk-p" not in read_error(400, text).message


@pytest.mark.parametrize("mark", "?&;#")
@pytest.mark.parametrize("name", ["api_key", "access_token", "Authorization", "password"])
def test_the_value_of_a_secret_parameter_or_field_is_never_shown(name, mark):
    check_url(f"http://host/search?q={{query}}{mark}{name}=sk%2Fplanted", "web")
    hide_values({"deep": {name: "Bearer sk-other"}, "keyboard": "qwerty"}, "server_extra")
    assert strike("sk/planted sk%2Fplanted sk-other qwerty") == "[secret] [secret] [secret] qwerty"


def test_a_secret_field_of_each_request_is_not_in_the_runs_settings_that_are_stored(tmp_path):
    config: Any = LLMConfig(backend="openai", server_extra={"api_key": "sk-planted-key"})
    with SampleStore(tmp_path / "samples.db") as store:
        store.begin("main", config.run_settings())
        assert store.run_meta("main")["server_extra"] == {"api_key": "[secret]"}
    assert b"sk-planted" not in (tmp_path / "samples.db").read_bytes()
