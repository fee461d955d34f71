"""Tokenizers and templates from elsewhere are tried in a child process before this one opens them."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from tiny_kbm import make_folder

from kbtrain.errors import UserError
from kbtrain.models import trial
from kbtrain.models.load import load_tokenizer
from kbtrain.models.trial import check_by_trial
from kbtrain.models.weights import opening
from kbtrain.prompts.kbm import _check_template, render_chat

FINE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}{% endfor %}"
CONTENT = "{{ messages[0]['content'] }}"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("made") / "tiny")


@pytest.fixture
def folder(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "tiny"))


@pytest.fixture
def children(monkeypatch):
    """Commands of the child processes that are started."""
    started = []
    real = trial.subprocess.Popen
    monkeypatch.setattr(
        trial.subprocess, "Popen", lambda command, **more: started.append(command) or real(command, **more)
    )
    return started


def test_a_folder_is_tried_once_and_again_when_a_file_of_it_changes(folder, children):
    (folder / "chat_template.jinja").write_text(FINE)
    for _ in range(2):
        assert load_tokenizer(str(folder)).chat_template == FINE
    assert len(children) == 1
    (folder / "chat_template.jinja").write_text(FINE + " ")
    load_tokenizer(str(folder))
    assert len(children) == 2


def test_an_embedded_model_and_a_folder_without_a_tokenizer_are_not_tried(tmp_path, monkeypatch, folder, children):
    monkeypatch.setenv("KBTRAIN_CACHE", str(tmp_path))
    shutil.copytree(folder, tmp_path / "models" / "ours")
    check_by_trial(tmp_path / "models" / "ours", "ours")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    check_by_trial(tmp_path / "empty", "empty")
    with opening(folder, "tiny", "its config"):
        assert children == []


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ 'x' | center(20000000) }}", "makes more than 1,000,000 characters of a short question"),
        ("{% set y = 'x'.ljust(90000000000) %}", "asks for more than 3 GiB of memory"),
        ("{% set y = '%099999999999d' % 1 %}", "asks for more than 3 GiB of memory"),
        ("{% set y = 'a\nb' | indent(90000000000) %}", "asks for more than 3 GiB of memory"),
        ("{% generation %}{% set y = 'x'.zfill('90000000000' | int) %}{% endgeneration %}", "asks for more than 3 GiB"),
    ],
)
def test_a_template_that_asks_for_gigabytes_is_refused_before_it_is_opened(folder, template, says):
    for name, text in (
        ("chat_template.jinja", template + CONTENT),
        ("tokenizer_config.json", json.dumps({"chat_template": template + CONTENT})),
        ("additional_chat_templates/tool_use.jinja", template + CONTENT),
    ):
        other = Path(shutil.copytree(folder, folder.with_name(name.replace("/", "-"))))
        (other / name).parent.mkdir(exist_ok=True)
        (other / name).write_text(text)
        with pytest.raises(UserError, match=rf"model '{other}': .*{says}.*; found in a trial process"):
            load_tokenizer(str(other))


def test_a_template_that_never_ends_is_stopped_by_its_time(folder, monkeypatch):
    monkeypatch.setattr(trial, "WALL", 1.0)
    loops = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
    (folder / "chat_template.jinja").write_text(loops + CONTENT)
    with pytest.raises(UserError, match="takes longer than 60 s"):
        check_by_trial(folder, "tiny")


def child_that(tmp_path, monkeypatch, code):
    """The trial with another program as the child."""
    (tmp_path / "child.py").write_text(code)
    monkeypatch.setattr(trial.trial_process, "__file__", str(tmp_path / "child.py"))


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import os; os.abort()", "opening its tokenizer ends the process \\(SIGABRT\\)"),
        (f"import os; os.kill(os.getpid(), {signal.SIGSEGV:d})", "ends the process \\(SIGSEGV\\)"),
        (
            "import os, sys; sys.stderr.write('memory allocation of 9 bytes failed'); sys.stderr.flush(); os.abort()",
            "asks for more than 3 GiB of memory",
        ),
        ("raise ImportError('no module')", "cannot be tried \\(ImportError: no module\\)"),
        ("import os; os._exit(4)", "fails with a panic"),
    ],
)
def test_a_library_that_ends_the_process_is_one_line(folder, tmp_path, monkeypatch, code, says):
    child_that(tmp_path, monkeypatch, code)
    with pytest.raises(UserError, match=f"model 'tiny': .*{says}"):
        check_by_trial(folder, "tiny")


def test_a_panic_in_the_child_is_its_own_status():
    from kbtrain.models.trial_process import PANIC, TOO_MUCH, attempt

    class Panic(BaseException):
        pass

    def work(error):
        raise error

    statuses = [attempt(lambda error=error: work(error)) for error in (Panic(), MemoryError(), ValueError())]
    assert statuses == [PANIC, TOO_MUCH, 0]


def test_a_broken_tokenizer_is_still_named_by_opening_it(folder):
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        load_tokenizer(str(folder))


@pytest.mark.parametrize(
    ("expression", "number"),
    [
        ("'x' | center(999999999)", 999999999),
        ("messages[0]['content'].ljust(5000000)", 5000000),
        ("'%999999999d' % 3", 999999999),
        ("'{:>99999999}'.format(1)", 99999999),
        ("'x'.zfill('12345678' | int)", 12345678),
        ("'x' | indent(-1000000)", 1000000),
    ],
)
def test_a_template_that_fills_up_for_some_question_alone_is_refused_when_it_is_read(expression, number):
    with pytest.raises(ValueError, match=f"it has the number {number}: a text of that width"):
        _check_template("{% if 'Rabat' in messages[0]['content'] %}{{ " + expression + " }}{% endif %}" + CONTENT)


@pytest.mark.parametrize(
    "template",
    [
        FINE,
        "{{ '%02d' % 3 }}{{ tools | tojson(indent=4) }}{{ '26 Jul 2024' }}{{ 'budget 16384' }}{{ 'call 5551234567' }}",
        "{% set n = 131072 %}{{ 'https://example.org/1234567890' }}{{ '100% of 12345678 users' }}",
    ],
)
def test_plain_templates_pass(template):
    _check_template(template)
    assert template


def test_the_child_reads_what_transformers_reads(folder):
    (folder / "chat_template.jinja").write_text(
        "{%- for m in messages %}\n  {%- if loop.first and m.role == 'system' %}{% continue %}{% endif %}\n"
        "{{- raise_exception('no') if m.role == 'tool' else '<' + m.role + '>' + m.content }}\n{%- endfor %}"
    )
    check_by_trial(folder, "tiny")
    assert render_chat(load_tokenizer(str(folder)), "hi") == "<user>hi"
    assert os.path.exists(folder / "chat_template.jinja")
