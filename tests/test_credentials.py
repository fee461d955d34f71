"""Keys come from the environment and are shown nowhere: no error, no meta file, no stored answer holds one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbtrain import errors
from kbtrain.config import parse_args
from kbtrain.credentials import check_url, hide_values, key_from_environment
from kbtrain.errors import UserError, never_show, strike
from kbtrain.llm.backends import LLMConfig
from kbtrain.provenance import write_atomically
from kbtrain.store import SampleStore


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
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
def test_a_key_that_no_header_can_carry_is_said_to_be_so_without_its_text(
    key: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(UserError, match=problem) as caught:
        key_from_environment("MY_KEY")
    assert "nted-key" not in str(caught.value)


def test_without_a_key_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "")
    assert key_from_environment("MY_KEY") is None
    assert key_from_environment("NOT_SET") is None


def test_a_key_is_struck_from_errors_files_and_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-planted-key")
    assert key_from_environment("MY_KEY") == "sk-planted-key"
    assert str(UserError("server said: Bearer sk-planted-key")) == "server said: Bearer [secret]"
    write_atomically(tmp_path / "meta.json", json.dumps({"header": "sk-planted-key"}))
    with SampleStore(tmp_path / "samples.db") as store:
        store.begin("main", {"extra": "sk-planted-key"})
        store.begin("main", {"extra": "sk-planted-key"})  # the same run, though the stored text is another
    assert not any(b"sk-planted" in path.read_bytes() for path in tmp_path.iterdir())


def test_the_longest_secret_is_struck_first() -> None:
    never_show("abcd")
    never_show("abcdefgh")
    never_show("ab")  # too short: it would be struck out of words
    assert strike("abcdefgh abcd about") == "[secret] [secret] about"


@pytest.mark.parametrize("url", ["http://me:sk-planted@host/v1", "http://sk-planted@host/v1"])
def test_an_address_with_a_name_or_password_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="key 'server_url': the address holds a name or a password") as caught:
        parse_args(LLMConfig, ["--server-url", url])
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize("name", ["api_key", "key", "access_token", "X-Api-Key", "Authorization", "password"])
def test_the_value_of_a_secret_parameter_or_field_is_never_shown(name: str) -> None:
    check_url(f"http://host/search?q={{query}}&{name}=sk%2Fplanted", "web")
    hide_values({"deep": {name: "sk-other"}, "keyboard": "qwerty"})
    assert strike("sk/planted sk%2Fplanted sk-other qwerty") == "[secret] [secret] [secret] qwerty"


def test_a_secret_field_of_each_request_is_not_in_the_runs_settings_that_are_stored(tmp_path: Path) -> None:
    config: Any = LLMConfig(backend="openai", server_extra={"api_key": "sk-planted-key"})
    with SampleStore(tmp_path / "samples.db") as store:
        store.begin("main", config.run_settings())
        assert store.run_meta("main")["server_extra"] == {"api_key": "[secret]"}
    assert b"sk-planted" not in (tmp_path / "samples.db").read_bytes()
