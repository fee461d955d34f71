"""Bad input of the stages that make data: one line each, with what to do, and nothing written."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
from support import scripts

ROOT = Path(__file__).parents[2]
WEB = """--web '{url: "http://127.0.0.1:1/?q={query}", results: results, id: url, title: title, text: content}'"""
MAP = "--dataset jsonl --path own.jsonl --columns '{text: prompt, answers: gold}'"
LOGS = f"--config {ROOT}/data_gen/configs/import_llama3.yaml --path answers.jsonl"
MODEL = "--model ./no/such/model"

# stage, its arguments, what the line says
REFUSED = [
    ("collect", "--dataset jsonl --path mine.jsonl", "mine.jsonl:2: field 'text'"),
    ("collect", "--dataset atlass", "did you mean 'atlas'"),
    ("collect", "--dataset jsonl --path none.jsonl", "none.jsonl: no such file"),
    ("collect", "--dataset jsonl", "needs a path"), ("collect", "--train 0 --dev 0 --test 0", "no questions left"),
    ("collect", "--datset atlas", "did you mean '--dataset'"),
    ("collect", "--limit 3 --dev 2", "give it or train, dev, test, not both"),
    ("collect", "--dataset jsonl --path own.jsonl", '--columns "{text: prompt, answers: gold}"'),
    ("collect", f"{MAP} --shares .5,.25", "give three shares, of train, dev and test, as 0.5,0.25,0.25; found .5,.25"),
    ("collect", "--dataset jsonl --path own.jsonl --columns '{prompt: text}'", "no field 'prompt' of a question; "),
    ("collect", f"{MAP} --shares .5,.25,.5", "must add up to 1"),
    ("collect", f"{MAP} --shares .5,.25,.25 --split dev", "shares make all three splits"),
    ("collect", f"{MAP} --group-by topic", "give shares, too"),
    ("collect", f"{MAP} --shares .5,.25,.25 --group-by topics", "topics"),
    ("retrieve", WEB, "key 'web': applies only with retriever: web"),
    ("retrieve", """--retriever web --web '{url: "http://h/{query}", titel: t}'""", "'web.titel': unknown key"),
    ("retrieve", """--retriever web --web '{url: "ftp://x/{query}"}'""", "must begin with http"),
    ("retrieve", f"--retriever web --corpus own.jsonl {WEB}", "key 'corpus': retriever web searches no corpus"),
    ("retrieve", "--retriever web", "key 'web': retriever web needs a service"),
    ("retrieve", "--retriever web --columns '{text: b}'", "key 'columns': retriever web reads no file of passages"),
    ("retrieve", "--chunk-overlap 2", "key 'chunk_overlap': applies only to chunks"),
    ("retrieve", "--retriever fixed --chunk-tokens 50", "key 'chunk_tokens': only retriever bm25 cuts passages"),
    ("sample", "--run /nowhere", "/nowhere/questions.jsonl: no such file"),
    ("sample", "--run broken", "broken/questions.jsonl:5: broken JSON"),
    ("sample", MODEL, "model './no/such/model': no such folder"),
    ("sample", "--temprature 2", "unknown argument '--temprature'; did you mean '--temperature'?"),
    ("sample", "--temperature warm", "key 'temperature'"),
    ("sample", "--conditions []", "key 'conditions': tuple should have at least 1 item"),
    ("sample", "--conditions [llm,rag,llm]", "key 'conditions': name each condition once"),
    ("sample", "--samples '{train: -1}'", "key 'samples': input should be greater than or equal to 0"),
    ("sample", "--dtype fp8", "key 'dtype': input should be 'auto', 'bf16', 'fp32'"),
    ("sample", "--server-url http://h:8000/v1", "key 'server_url': applies only with backend: openai; set"),
    ("sample", "--server-model m --backend vllm", "key 'server_model': applies only with backend: openai"),
    ("sample", "--server-extra '{min_p: 0.1}'", "key 'server_extra': applies only with backend: openai"),
    ("sample", "--vllm-extra '{enforce_eager: true}'", "key 'vllm_extra': applies only with backend: vllm"),
    ("sample", "--backend vlm", "key 'backend': unknown 'vlm'; did you mean 'vllm'"),
    ("sample", "--backend openai --top-p .9 --server-extra '{top_p: null}'", "server_extra takes it out of every"),
    ("sample", "--ray-actors 8", "key 'ray_actors': needs engine: ray"),
    ("sample", "--ray-address auto", "key 'ray_address': needs engine: ray"),
    ("sample", "--ray-cpus 2", "key 'ray_cpus': needs engine: ray"),
    ("sample", "--shard 9/8", "key 'shard': expected 1/n to n/n"),
    ("label", "--tau-mastry 0.3", "unknown argument '--tau-mastry'; did you mean '--tau-mastery'?"),
    ("label", "--tau-mastery high", "key 'tau_mastery': input should be a valid number"),
    ("label", "--tau-mastery 1.5", "key 'tau_mastery': input should be less than or equal to 1"),
    ("label", "--certainty paper --certainty-answers 5", "key 'certainty_answers': applies only with"),
    ("label", "--sampling-run man", "samples.db: no run 'man'; runs in it: main"),
    ("label", "--run gone", "gone/samples.db: no such file"),
    ("label", "--config gone.yaml", "gone.yaml: no such file"),
    ("label", "--run broken", "broken/questions.jsonl:5: broken JSON"),
    ("build", "--with-reference true", "with_reference needs keys without benefit"),
    ("build", "--keys [mastry]", "key 'keys': input should be 'mastery', 'certainty', 'benefit'"),
    ("build", "--keys []", "keys must name one target or more, each once"),
    ("build", "--on-leak ignore", "key 'on_leak': input should be 'fail' or 'drop', found 'ignore'"),
    ("build", "--with-reference 3", "key 'with_reference': input should be a valid boolean"),
    ("build", "--run gone", "gone/labels.jsonl: no such file; run first: kbtrain run label --run gone"),
    ("import_answers", f"{LOGS} --answers '{{llm: a}}'", "answers needs columns for llm and rag"),
    ("import_answers", f"{LOGS} --stated '{{mask: a}}'", "stated names a condition without answers"),
    ("import_answers", f"{LOGS} --path gone.jsonl", "gone.jsonl: no such file"),
    ("import_answers", f"{LOGS} --splits '{{test: test}}'", "no split for 'train(dev_500)' in splits"),
    ("import_answers", f"{LOGS} --dev-share 1", "key 'dev_share': input should be less than 1"),
]  # fmt: skip


@pytest.fixture(scope="module")
def given(tmp_path_factory, books):
    """A folder with a run and files of users."""
    folder = tmp_path_factory.mktemp("refused")
    books.fill(folder / "run")
    shutil.copytree(folder / "run", folder / "broken")
    lines = (folder / "run" / "questions.jsonl").read_text().splitlines()
    (folder / "broken" / "questions.jsonl").write_text("\n".join([*lines[:4], lines[4][:-10], *lines[5:]]) + "\n")
    answer = {"dataset": "nq", "split": "train(dev_500)", "qid": "q", "question": "Who?", "answers": ["Ann"],
              "pred_no_retrieval": "Bob", "pred_one_retrieval": "Ann", "acc_no_retrieval": 0,
              "acc_one_retrieval": 1}  # fmt: skip
    files = {
        "mine.jsonl": [{"question": "a?", "answers": "b"}, {"question": "...", "answers": "d"}],
        "own.jsonl": [{"prompt": f"Who made thing {i}?", "gold": f"a{i}", "topic": f"t{i}"} for i in range(8)],
        "answers.jsonl": [answer],
    }
    for name, rows in files.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize(("stage", "arguments", "line"), REFUSED)
def test_bad_input_is_one_line_and_writes_nothing(given, stage, arguments, line, monkeypatch):
    monkeypatch.chdir(given)
    words = shlex.split(arguments)
    run = [] if "--run" in words else ["--run", "new" if stage in ("collect", "import_answers") else "run"]
    run += ["--sampling-run", "other"] if stage == "sample" else []
    before = {path: path.read_bytes() for path in given.rglob("*.jsonl")}
    done = scripts.here(f"data_gen/{stage}.py", *run, *words)
    errors = [said for said in done.stderr.splitlines() if said.startswith("error: ")]
    assert (done.returncode, len(errors)) == (2, 1), done.stderr
    assert line in errors[0] and "Traceback" not in done.stderr
    assert {path: path.read_bytes() for path in given.rglob("*.jsonl")} == before
