"""judge.py: verdicts on every stored answer, used by the labels."""

import json
from dataclasses import replace

from model_server import ModelServer
from support.files import keep_change, note_change
from support.scripts import load
from tiny_kbm import make_folder

from kbtrain.config import parse_args
from kbtrain.io import jsonl
from kbtrain.io.provenance import read_meta
from kbtrain.io.store import SampleStore
from kbtrain.labeling.verdicts import QuestionVerdicts
from kbtrain.llm import transformers_llm
from kbtrain.models import load as loading
from kbtrain.records import Label, Question, Sample, SampleSet


def test_verdicts_by_rule_give_the_labels_that_grading_gives(run_folder, script, label):
    graded = label(run_folder)
    done = script("judge", "--run", str(run_folder), "--judge", "rules")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("30 questions, 50 distinct answers judged by rules: 20 right, abstained from 0")
    meta = read_meta(run_folder / "verdicts.jsonl")
    assert meta["judge"]["judge"] == "rules"
    assert meta["counts"] == {"answers": 50, "right": 20, "abstained": 0}
    assert label(run_folder, verdicts=True) == graded
    assert read_meta(run_folder / "labels.jsonl")["label_rule"]["judge"] == meta["judge"]


def test_what_a_judge_abstains_from_is_left_out_of_the_mastery_and_counted(run_folder, script, label):
    assert script("judge", "--run", str(run_folder), "--judge", "rules").returncode == 0
    made = [
        QuestionVerdicts(v.question_id, {key: None if key == "nobody" else right for key, right in v.right.items()})
        if int(v.question_id.split("-")[1]) % 2
        else v
        for v in jsonl.read(QuestionVerdicts, run_folder / "verdicts.jsonl")
    ]
    jsonl.write(run_folder / "verdicts.jsonl", made)
    note_change(run_folder / "verdicts.jsonl")
    labels = label(run_folder, verdicts=True, tau_mastery=0.2, tau_certainty=0.75)
    counts = read_meta(run_folder / "labels.jsonl")["counts"]
    # train question i: right in i % 11 of 10 answers, else "Nobody", from which the judge abstains if i is odd
    kept = [i for i in range(20) if i not in (1, 11)]  # these two have 1 and 0 answers left
    assert [x.question_id for x in labels] == [f"train-{i}" for i in kept]
    assert [x.llm.mastery for x in labels] == [1.0 if i % 2 else i % 11 / 10 for i in kept]
    assert [x.llm.n_abstained for x in labels] == [(10 - i % 11) * (i % 2) for i in kept]
    assert counts["llm_judge_abstained"] == 2
    assert counts["llm_answers_judge_abstained"] == sum((10 - i % 11) * (i % 2) for i in range(20))


def test_open_and_choice_questions_in_one_run_are_each_graded_by_what_fits(run_folder, script, label):
    asked = [
        Question(f"choice-{i}", f"Which book is number {i}?", ("B",), "train", "books", form="choice", grading="option",
                 options=("Emma", "Ulysses", "Germany"))
        for i in range(3)
    ]  # fmt: skip
    answers = ["B", "B. Ulysses", "b", "Ulysses", "A. Germany", "Germany", "C", "A", "B", "B"]
    made = tuple(Sample(i, text, 3, "eos", -1.0) for i, text in enumerate(answers))
    with open(run_folder / "questions.jsonl", "a", encoding="utf-8") as file:
        file.writelines(jsonl.dump(question) + "\n" for question in asked)
    with SampleStore(run_folder / "samples.db") as store:
        store.put("main", [SampleSet(question.id, "llm", made, None, 30) for question in asked])
    by_rule = {x.question_id: x.llm.n_correct for x in label(run_folder)}
    assert script("judge", "--run", str(run_folder), "--judge", "rules").returncode == 0
    assert read_meta(run_folder / "verdicts.jsonl")["counts"]["choice_questions"] == 3
    by_judge = {x.question_id: x.llm.n_correct for x in label(run_folder, verdicts=True)}
    assert by_judge == by_rule and by_judge["choice-0"] == 6


def test_any_back_end_judges_and_a_missing_verdict_or_setting_is_one_line(run_folder, script):
    done = script("label", "--run", str(run_folder), "--verdicts")
    assert done.returncode == 2 and "verdicts.jsonl: no such file" in done.stderr
    assert script("judge", "--run", str(run_folder), "--judge", "rules").returncode == 0
    path, labelling = run_folder / "verdicts.jsonl", ("label", "--run", str(run_folder), "--verdicts")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0].replace("false", "true"), *lines[1:]]), encoding="utf-8")
    done = script(*labelling, "--tau-mastery", "0.2")
    told = "verdicts.jsonl: was changed since judge made it; run that again, or delete verdicts.jsonl.meta.json to keep"
    assert done.returncode == 2 and told in done.stderr and not (run_folder / "labels.jsonl").exists()
    keep_change(path)
    assert "graded by verdicts.jsonl (your own verdicts), tau" in script(*labelling, "--tau-mastery", "0.2").stdout
    assert next(jsonl.read(Label, run_folder / "labels.jsonl")).llm.mastery == 1
    path.write_text("\n".join(lines[1:]), encoding="utf-8")
    done = script(*labelling, "--tau-mastery", "0.2")
    assert done.returncode == 2 and "question 'train-0': no verdict on" in done.stderr
    done = script("judge", "--run", str(run_folder), "--judge", "llm", "--backend", "scripted", "--model", "none")
    assert done.returncode == 0, done.stderr  # the scripted model says no 1 and no 0
    assert "judged by llm:none: 0 right, abstained from 50" in done.stdout


def test_verdicts_on_other_questions_are_told_and_made_again(run_folder, script):
    questions, labelling = run_folder / "questions.jsonl", ("label", "--run", str(run_folder))
    assert script("judge", "--run", str(run_folder), "--judge", "rules").returncode == 0
    assert script(*labelling, "--verdicts").returncode == 0
    first, *others = jsonl.read(Question, questions)
    jsonl.write(questions, [replace(first, answers=("Nobody",)), *others])
    done = script(*labelling, "--verdicts")
    assert done.returncode == 2, done.stdout
    assert done.stderr.endswith("verdicts.jsonl: made from another questions.jsonl; run `kbtrain run judge` again\n")
    assert script(*labelling).returncode == 0  # by the questions' own rules there is nothing to make again
    assert script("judge", "--run", str(run_folder), "--judge", "rules").returncode == 0
    assert script(*labelling, "--verdicts").returncode == 0


def test_judgements_that_a_server_was_paid_for_are_kept_and_not_made_again(run_folder, script):
    says = lambda body, place: "01"["Author 1" in body["messages"][-1]["content"]]  # noqa: E731
    with ModelServer(failures=("",) * 20 + ("broken",) * 50, say=says) as server:
        asked = (
            *("judge", "--run", str(run_folder), "--judge", "llm", "--backend", "openai", "--model", "tiny"),
            *("--server-url", server.url, "--server-endpoint", "chat", "--server-tries", "1", "--batch", "4"),
        )
        done = script(*asked)
        assert done.returncode == 2 and "what was finished is kept" in done.stderr
        assert not (run_folder / "verdicts.jsonl").exists()
        partial = run_folder / "verdicts.jsonl.partial"
        paid = partial.read_bytes()
        done = script(*asked, "--max-new-tokens", "9")
        assert done.returncode == 2 and paid == partial.read_bytes()
        assert "begun with model.sampling.max_new_tokens = 64, now it is 9; set it back, or move or" in done.stderr
        server.failures.clear()
        begun = len(server.requests)
        done = script(*asked)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("30 questions, 50 distinct answers judged by llm:tiny: ")
        assert 30 <= len(server.requests) - begun < 40  # 16 to 20 of 50 were there
        counts = read_meta(run_folder / "verdicts.jsonl")["counts"]
        made = list(jsonl.read(QuestionVerdicts, run_folder / "verdicts.jsonl"))
        asked_of = jsonl.read(Question, run_folder / "questions.jsonl")
        assert [one.question_id for one in made] == [one.id for one in asked_of]
        assert counts["answers"] == sum(len(one.right) for one in made) == 50
        begun = len(server.requests)
        assert "is there already" in script(*asked).stdout and len(server.requests) == begun
        assert "judged by llm:tiny" in script(*asked, "--max-new-tokens", "9").stdout and len(server.requests) > begun


def test_a_verdict_is_not_paid_for_again_after_more_sampling(run_folder, capsys):
    """Another run gives one new answer to a question; the others it has in common with the first."""
    stage, out = load("data_gen/judge.py"), run_folder / "verdicts.jsonl"

    def judge(server, *more):
        begun = len(server.requests)
        asked = (
            *("--run", str(run_folder), "--judge", "llm", "--backend", "openai", "--model", "tiny", "--batch", "4"),
            *("--server-url", server.url, "--server-endpoint", "chat", "--server-tries", "1", *more),
        )
        stage.main(parse_args(stage.JudgeConfig, list(asked)))
        return len(server.requests) - begun

    with ModelServer(say=lambda body, place: "1") as server:
        first = judge(server)
        assert first >= 50
        with SampleStore(run_folder / "samples.db") as store:
            (one, *_) = store.iterate("main", "llm")
            store.begin("other", {"model": "tiny"})
            store.put("other", [replace(one, greedy=Sample(-1, "Something new", 2, "eos", 0.0))])
        before = {made.question_id: made.right for made in jsonl.read(QuestionVerdicts, out)}
        capsys.readouterr()
        for more, n in (((), 0), (("--sampling-run", "other"), 1), (("--max-new-tokens", "9"), 50)):  # another judge
            assert judge(server, *more, "--dry-run") == 0
            assert capsys.readouterr().out.startswith(f"{n} distinct answers to judge\n")
        assert 1 <= judge(server, "--sampling-run", "other") <= first - 49  # the probes of a new process, and one
        found = {made.question_id: made.right for made in jsonl.read(QuestionVerdicts, out)}
        new = before[one.question_id] | {"something new": True}
        assert found == before | {one.question_id: new}
        assert judge(server) <= first - 50  # both runs' verdicts are there
        questions = list(jsonl.read(Question, run_folder / "questions.jsonl"))
        jsonl.write(run_folder / "questions.jsonl", [replace(q, answers=(*q.answers, "more")) for q in questions])
        assert judge(server) == first  # of other gold answers


def test_a_model_is_opened_only_while_something_is_left_to_judge(run_folder, tmp_path, monkeypatch, capsys):
    stage, opened, real = load("data_gen/judge.py"), [], loading.load_model

    def counted(*given):
        opened.append(given)
        return real(*given)

    for module in (loading, transformers_llm):
        monkeypatch.setattr(module, "load_model", counted)
    model = make_folder(tmp_path / "judge")
    limits = ("--max-new-tokens", "2", "--judge", "llm", "--model", str(model))
    run = lambda *more: stage.main(parse_args(stage.JudgeConfig, ["--run", str(run_folder), *limits, *more]))  # noqa: E731
    run()
    assert len(opened) == 1 and "50 distinct answers judged" in capsys.readouterr().out
    run()
    assert len(opened) == 1 and "is there already" in capsys.readouterr().out
    run("--device", "cpu")  # 'auto' may have meant it: that is seen when the model is open
    assert len(opened) == 2 and "is there already" in capsys.readouterr().out
    run("--dtype", "fp32")
    assert len(opened) == 3 and "50 distinct answers judged" in capsys.readouterr().out
    template = model / "tokenizer_config.json"
    template.write_text(json.dumps(json.loads(template.read_text()) | {"chat_template": None}))
    run()
    assert len(opened) == 4 and "50 distinct answers judged" in capsys.readouterr().out
