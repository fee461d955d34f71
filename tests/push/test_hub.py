"""Gates on the hub: sent with a card, fetched by revision, through the hub's own client and a stand-in of its HTTP."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from hub_server import TOKEN, HubServer, Repository
from safetensors.torch import save_file
from support.length_gate import LengthCard
from support.long_questions import long_question_gate

import kbtrain
from kbtrain import cli
from kbtrain.config import parse_args
from kbtrain.errors import UserError
from kbtrain.gate.hub import is_hub_name, local_folder
from kbtrain.gates.registry import folder_of
from kbtrain.gates.stack import Input, Linear, Member, StackCard
from kbtrain.push import Push, push, without_paths
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.decide import LoadedGate

ROOT = Path(__file__).parents[2]
SECRET_QUESTION = "Which river runs behind our office?"
NAME = "someone/river-gate"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The stand-in, with the client's settings as its environment would set them at its start."""
    from huggingface_hub import constants

    with HubServer() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HOME", "/home/nobody-of-the-tests")
        yield server


@pytest.fixture
def gate(tmp_path):
    return long_question_gate(
        tmp_path / "run" / "gate",
        run={"index": str(tmp_path / "run" / "bm25"), "train_sha256": "b" * 64, "config": {"output": "merger/x"}},
    )


def lines(folder, name=NAME, **options):
    return push(Push(folder, name, **options), lambda line: None)


def test_a_gate_that_was_sent_scores_as_the_folder_does(hub, gate):
    told = lines(gate)
    fetched = kbtrain.load_gate(NAME)
    asked = ["Who?", "Who was the first of the rulers that came from the far north?"]
    assert fetched.score(asked) == kbtrain.load_gate(gate).score(asked)
    assert [one.retrieve for one in fetched.decide(asked)] == [False, True]
    assert set(hub.repositories[NAME].files) == {
        ".gitattributes", "README.md", "gate.json", "tokens.json", "trained_entities.txt", "trained_on.txt",
        "words.safetensors",
    }  # fmt: skip
    assert hub.repositories[NAME].refs["main"] in told[-1]
    assert not hub.repositories[NAME].private


def test_nothing_of_the_machine_nor_of_the_training_texts_is_sent(hub, gate, tmp_path):
    (gate / "notes.txt").write_text(SECRET_QUESTION)
    (gate / "scores.jsonl").write_text(json.dumps({"question": SECRET_QUESTION}))
    (gate / "states").mkdir()
    save_file({"states": torch.zeros(2)}, gate / "states" / "a.safetensors")
    points = f"- Index: {tmp_path}/run/bm25.\n- Corpus: /home/jane doe/acme merger/x.\n- Limits: few and/or none.\n"
    (gate / "README.md").write_text(f"# A gate\n{points}\n## Run\n| train | {tmp_path}/t |\n")
    lines(gate, private=True)
    repository = hub.repositories[NAME]
    sent = b"".join(repository.files.values())
    assert SECRET_QUESTION.encode() not in sent and str(tmp_path).encode() not in sent and TOKEN.encode() not in sent
    run = json.loads(repository.files["gate.json"])["run"]
    assert run["index"] == "bm25" and "config" not in run
    card = repository.files["README.md"].decode()
    assert "Index" not in card and "merger" not in card and "- Limits: few and/or none." in card
    for text, expected in (
        ("/home/me/runs/demo/train.jsonl", "train.jsonl"),
        ("~/x/y", "y"),
        ("/tmp/jane doe/a (copy)/b [1]", "b [1]"),
        ("C:\\Users\\me\\x", "x"),
        *((kept, kept) for kept in ("runs/demo/train.jsonl", "org/model", "</s>", "http://host/v1/x", "and/or")),
    ):
        assert without_paths({"run": [text]}, {}) == {"run": [expected]}
    for name in ("own_prompts", "chat_template"):  # their fingerprint is checked
        own = {"label_rule": {name: {"llm": "Write \\(x\\) or /a/b. {question}"}}}
        assert without_paths(own, {}) == own
    assert repository.private and not any("states" in name for name in repository.files)


def test_a_gate_that_is_to_be_private_is_not_sent_to_a_public_repository(hub, gate):
    hub.repositories[NAME] = Repository()
    with pytest.raises(UserError, match=f"{NAME}: exists already and is public"):
        lines(gate, private=True)
    assert set(hub.repositories[NAME].files) == {".gitattributes"} and not hub.large


def test_the_card_says_what_it_is_for_and_its_snippet_runs(hub, gate, capsys):
    (gate / "README.md").write_text(
        "# A gate\n- Limits: few.\n\n## On dev\n| auroc | 0.7 [0.6, 0.8] |\n\n## Versions\nx\n"
    )
    lines(gate, licence="apache-2.0")
    card = hub.repositories[NAME].files["README.md"].decode()
    head = yaml.safe_load(card.split("---\n")[1])
    assert (head["library_name"], head["license"]) == ("kbtrain", "apache-2.0")
    assert "Not valid for other models" in card and "- Limits: few." in card and "0.7 [0.6, 0.8]" in card
    assert "## Versions" not in card
    assert f"| train | `{'b' * 64}` |" in card
    (code,) = (part.partition("```")[0] for part in card.split("```python\n")[1:])
    exec(compile(code, "card", "exec"), {})
    score = kbtrain.load_gate(gate).score(["What is the capital of France?"])[0]
    assert f"{score:.6g}" in card and capsys.readouterr().out.startswith(f"[{score}]")


def test_a_revision_is_held_when_the_main_branch_moves(hub, tmp_path):
    lines(long_question_gate(tmp_path / "one"))
    first = hub.repositories[NAME].refs["main"]
    hub.repositories[NAME].refs["v1"] = first
    lines(long_question_gate(tmp_path / "two", steep=9.0))
    question = ["Who was it that came?"]
    now, then = kbtrain.load_gate(NAME).score(question), kbtrain.load_gate(NAME, revision=first).score(question)
    assert now != then == kbtrain.load_gate(tmp_path / "one").score(question)
    assert kbtrain.load_gate(NAME, revision="v1").score(question) == then
    with pytest.raises(UserError, match=f"{NAME}: no revision 'v9' on the hub"):
        kbtrain.load_gate(NAME, revision="v9")


def test_a_server_takes_a_gate_from_the_hub(hub, gate):
    lines(gate)
    first = hub.repositories[NAME].refs["main"]
    config = parse_args(ServeConfig, [f"gate={NAME}", "--search", "none", "--revision", first])
    folder = folder_of(config.gate, config.revision)
    assert folder.name == first and LoadedGate.open(folder, None, "auto", "cpu").name.startswith("features")
    assert folder_of(gate, None) == gate


def test_files_of_an_earlier_gate_are_removed_and_other_peoples_stay(hub, gate):
    hub.repositories[NAME] = Repository()
    hub.repositories[NAME].commit({"probe.json": b"{}", "LICENSE": b"mine", ".gitattributes": b""})
    lines(gate)
    assert {"LICENSE", ".gitattributes"} < set(hub.repositories[NAME].files)
    assert "probe.json" not in hub.repositories[NAME].files


def stack_of(*folders):
    """A stack of gates of one score each."""
    scores = [f"{Path(folder).name}/features_mastery" for folder in folders]
    inputs = {name: Input(low=0.0, high=1.0, log_odds=True, slope=2.0) for name in scores}
    members = tuple(Member(folder=folder, scores=("features_mastery",), stage="question") for folder in folders)
    model = Linear(intercept=0.1, inputs=inputs, strength=1.0)
    return StackCard(keys=("mastery",), members=members, labels="soft", models={"mastery": model})


def test_a_gate_whose_members_lie_inside_it_is_sent_with_them(hub, tmp_path):
    folder = tmp_path / "pair"
    for name, steep in (("tuned", 1.0), ("probe", 3.0)):
        (long_question_gate(folder / name, steep=steep) / "trained_on.txt").write_text("a" * 16 + "\n")
    stack_of("tuned", "probe").write(folder)
    lines(folder, hashes=False)
    of_each = ("gate.json", "tokens.json", "words.safetensors")
    wanted = {"README.md", "gate.json", *(f"{member}/{file}" for member in ("tuned", "probe") for file in of_each)}
    assert set(hub.repositories[NAME].files) - {".gitattributes"} == wanted
    fetched = kbtrain.load_gate(NAME)
    assert fetched.score(["Who came?"]) == kbtrain.load_gate(folder).score(["Who came?"])
    beside = tmp_path / "beside"
    beside.mkdir()
    stack_of("../pair/tuned", "../pair/probe").write(beside)
    for member, base in {"tuned": str(tmp_path), "probe": "all-minilm-l6-v2"}.items():
        card = json.loads((folder / member / "gate.json").read_text())
        (folder / member / "gate.json").write_text(json.dumps({**card, "base_model": base}))
    lines(beside, "someone/beside", model="org/llm")
    sent = [hub.repositories["someone/beside"].files[f"{member}/gate.json"] for member in ("tuned", "probe")]
    assert [json.loads(card)["base_model"] for card in sent] == ["org/llm", "all-minilm-l6-v2"]
    assert json.loads(hub.repositories["someone/beside"].files["gate.json"])["members"][1]["folder"] == "probe"
    assert kbtrain.load_gate("someone/beside").score(["Who came?"]) == fetched.score(["Who came?"])
    lines(local_folder(NAME), "someone/other-gate")
    assert kbtrain.load_gate("someone/other-gate").score(["Who came?"]) == fetched.score(["Who came?"])


def test_what_is_in_the_cache_opens_without_the_hub(hub, gate, monkeypatch):
    from huggingface_hub import constants

    lines(gate)
    commit, score = hub.repositories[NAME].refs["main"], kbtrain.load_gate(NAME).score(["Who?"])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(hub.asked)
    assert kbtrain.load_gate(NAME).score(["Who?"]) == score == kbtrain.load_gate(NAME, revision=commit).score(["Who?"])
    assert len(hub.asked) == asked
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub.status = 503
    assert kbtrain.load_gate(NAME).score(["Who?"]) == score
    with pytest.raises(
        UserError, match="someone/other: the hub cannot be reached, and its cache here has no complete copy"
    ):
        kbtrain.load_gate("someone/other")


@pytest.mark.parametrize(
    "status, said", [(401, "status 401.*HF_TOKEN"), (403, "status 403"), (429, "wait"), (500, "500")]
)
def test_a_refusal_is_one_line_without_the_token(hub, gate, status, said):
    hub.status = status
    with pytest.raises(UserError, match=f"{NAME}: .*{said}") as error:
        lines(gate)
    assert TOKEN not in str(error.value) and len(str(error.value).splitlines()) == 1


def test_a_repository_that_is_not_there_or_not_ours(hub, gate, monkeypatch):
    with pytest.raises(UserError, match="someone/none: no such folder here, and no repository on the hub"):
        kbtrain.load_gate("someone/none")
    lines(gate, private=True)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(UserError, match=f"{NAME}: no such folder here, and no repository on the hub that this token"):
        kbtrain.load_gate(NAME)
    with pytest.raises(UserError, match="no token: set HF_TOKEN"):
        lines(gate)
    monkeypatch.setenv("HF_TOKEN", "hf_ends_in_a_line\n")
    with pytest.raises(UserError, match="HF_TOKEN: character 18 of the key is a line end") as error:
        lines(gate)
    assert "hf_ends" not in str(error.value)


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("words.safetensors", None, "words.safetensors: no such file; gate.json names it"),
        ("tokens.json", None, "tokens.json: no such file"),
        ("gate.json", None, "gate.json: no such file"),
        ("head.pt", pickle.dumps({"a": 1}), "head.pt: a pickle"),
        ("extra.safetensors", pickle.dumps({"a": 1}), "extra.safetensors: not a safetensors file"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_before_anything_is_sent(hub, gate, name, content, said):
    if content is None:
        (gate / name).unlink()
    else:
        (gate / name).write_bytes(content)
    with pytest.raises(UserError, match=said):
        lines(gate)
    assert hub.asked == []


def test_a_pickle_on_the_hub_is_refused_before_anything_is_fetched(hub, gate):
    lines(gate)
    repository = hub.repositories[NAME]
    repository.commit({**repository.files, "old/head.pkl": pickle.dumps({"a": 1})})
    hub.asked.clear()
    with pytest.raises(UserError, match=f"{NAME}: old/head.pkl is a pickle"):
        kbtrain.load_gate(NAME)
    assert not [path for _, path in hub.asked if "/resolve/" in path]
    repository.commit({"model.safetensors": b"x"})
    with pytest.raises(UserError, match=r"no gate\.json in it, so it is not a gate"):
        kbtrain.load_gate(NAME)


def test_weights_that_were_changed_on_the_hub_are_refused(hub, gate):
    lines(gate)
    repository = hub.repositories[NAME]
    repository.commit({**repository.files, "words.safetensors": repository.files["words.safetensors"][:-1] + b"\x01"})
    with pytest.raises(UserError, match=r"not the weights that gate\.json names"):
        kbtrain.load_gate(NAME)


def test_a_gate_that_would_send_a_key_of_the_environment_is_neither_sent_nor_opened(hub, gate):
    card = {"schema_version": 1, "kind": "draft", "base_model": "m", "dtype": "auto", "prompt_fingerprint": "p"}
    server = {"url": "http://evil/v1", "name": "m", "key_env": "AWS_SECRET"}
    text = json.dumps({**card, "signal": "draft_margin", "server": server})
    hub.repositories[NAME] = Repository()
    hub.repositories[NAME].commit({"gate.json": text.encode()})
    with pytest.raises(UserError, match="this gate has an address and a key of the environment"):
        kbtrain.load_gate(NAME)
    (gate / "gate.json").write_text(text)
    with pytest.raises(UserError, match="is not sent"):
        lines(gate)


def test_a_model_that_only_this_machine_knows_needs_a_name(hub, gate, tmp_path):
    (tmp_path / "weights").mkdir()
    card = json.loads((gate / "gate.json").read_text())
    (gate / "gate.json").write_text(json.dumps({**card, "base_model": str(tmp_path / "weights")}))
    with pytest.raises(UserError, match=r"field 'base_model': .* is a folder of this machine; .* --base-model"):
        lines(gate)
    lines(gate, model="org/llm")
    files = hub.repositories[NAME].files
    assert json.loads(files["gate.json"])["base_model"] == "org/llm"
    assert "trained on the answers of `org/llm`" in files["README.md"].decode()
    assert yaml.safe_load(files["README.md"].decode().split("---\n")[1])["base_model"] == "org/llm"


def test_a_gate_that_asks_a_model_is_tried_with_the_one_that_lies_here(hub, tmp_path):
    from tiny_kbm import make_folder

    from kbtrain.gates.draft import DraftCard
    from kbtrain.models.load import load_tokenizer
    from kbtrain.prompts.own import asked_fingerprint

    model = make_folder(tmp_path / "model")
    prompts = asked_fingerprint(load_tokenizer(str(model)), None)
    about = {"dtype": "fp32", "prompt_fingerprint": prompts, "signal": "first_token_entropy"}
    card = DraftCard(base_model=str(model), **about)
    (tmp_path / "gate").mkdir()
    card.write(tmp_path / "gate")
    lines(tmp_path / "gate", model="org/llm")
    files = hub.repositories[NAME].files
    assert json.loads(files["gate.json"])["base_model"] == "org/llm"
    assert "gave: score " in files["README.md"].decode() and str(tmp_path).encode() not in b"".join(files.values())
    with pytest.raises(UserError, match="model 'org/llm'"):  # the stand-in has no such model
        kbtrain.load_gate(NAME)


def test_the_card_names_the_package_that_brings_the_kind(hub, tmp_path, monkeypatch):
    (tmp_path / "gate").mkdir()
    LengthCard(slope=1.0).write(tmp_path / "gate")
    with pytest.raises(UserError, match=r"unknown kind .length.; .*; a gate of another package needs that package"):
        lines(tmp_path / "gate", dry_run=True)
    about = tmp_path / "site" / "length_gate-0.1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: length-gate\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text("[kbtrain.gates]\nlength = support.length_gate:KIND\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert "Needs `pip install kbtrain length-gate`." in "\n".join(lines(tmp_path / "gate", dry_run=True))


def test_a_dry_run_shows_files_and_card_and_asks_nobody(hub, gate, capsys):
    assert cli.main(["push", str(gate), NAME, "--dry-run", "--no-hashes"]) == 0
    out = capsys.readouterr().out
    assert "words.safetensors" in out and "# someone/river-gate" in out and "nothing was sent" in out
    assert "trained_on.txt" not in out and "held_out.jsonl" not in out
    assert hub.asked == []


@pytest.mark.parametrize("name", ["gate", "a/b/c", "a/../b", "someone/", "/a", "some one/gate", "a/b.git", "a/b--c"])
def test_a_name_that_no_repository_has_is_refused(gate, name):
    with pytest.raises(UserError, match="no name of a repository on the hub"):
        lines(gate, name, dry_run=True)


def test_a_folder_s_name_is_never_asked_of_the_hub(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "kbm").mkdir(parents=True)
    assert not is_hub_name("runs/kbm") and not is_hub_name("runs/kmb") and not is_hub_name("/a/b") and is_hub_name(NAME)
    with pytest.raises(UserError, match=r"runs/kmb/gate.json: no such file"):
        kbtrain.load_gate("runs/kmb")
    with pytest.raises(UserError, match="revision 'v1': 'runs/kbm' is read from this machine"):
        local_folder("runs/kbm", "v1")
    assert hub.asked == []


def test_the_client_s_own_settings_hold(hub, gate, tmp_path):
    """``kbtrain decide`` as a process: HF_ENDPOINT, HF_HOME and HF_TOKEN are read from the environment."""
    lines(gate, private=True)
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    question = "Who was the first of the rulers that came from the far north?"
    command = [sys.executable, "-m", "kbtrain.cli", "decide", NAME, question, "--revision", "main"]
    env["PYTHONPATH"] = str(ROOT)
    decided = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=False)
    assert (decided.returncode, decided.stderr) == (0, "")
    assert json.loads(decided.stdout)["retrieve"] is True
