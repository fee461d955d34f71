"""An example of each name of ``kbtrain.__all__``, as a doctest that ``tests/test_pages.py`` runs."""

EXAMPLES = {
    "Decision": """
>>> decision = kbtrain.Decision(score=0.7, probability=0.7, threshold=0.5, retrieve=True, reason="above-threshold")
>>> decision.retrieve
True
""",
    "Fitted": """
>>> found = kbtrain.Fitted("Always search: the gate does the same for every question.")
>>> found.gate is None, found.results is None
(True, True)
""",
    "Gate": """
>>> gate = kbtrain.load_gate("runs/demo/stack")
>>> isinstance(gate, kbtrain.Gate), len(gate.score(["Who wrote Faust?", "What is 2 + 2?"]))
(True, 2)
""",
    "GateCard": """
>>> from kbtrain.gates.registry import read_card
>>> card = read_card("runs/demo/stack")  # gate.json, read without torch
>>> isinstance(card, kbtrain.GateCard), card.kind
(True, 'stack')
""",
    "GateExample": """
>>> kbtrain.GateExample.ask("Who wrote Faust?").question
'Who wrote Faust?'
""",
    "Hit": """
>>> kbtrain.Hit("p1", "Faust", "Faust is a play by Goethe.", 7.5).score
7.5
""",
    "KeyedCard": """
>>> from kbtrain.gates.registry import read_card
>>> card = read_card("runs/demo/stack")
>>> isinstance(card, kbtrain.KeyedCard), card.keys
(True, ('benefit',))
""",
    "KeyedGate": """
>>> gate = kbtrain.load_gate("runs/demo/stack")
>>> isinstance(gate, kbtrain.KeyedGate), gate.gate("benefit").name
(True, 'stack_benefit')
""",
    "Kind": """
>>> from kbtrain.gates.registry import kind_named
>>> kind = kind_named("features")
>>> isinstance(kind, kbtrain.Kind), kind.made_by
(True, 'recipes/train_features.py')
""",
    "LLMConfig": """
>>> kbtrain.LLMConfig(backend="openai", model="my-model", server_url="http://127.0.0.1:8001/v1").served_name
'my-model'
""",
    "Label": """
>>> from dataclasses import fields
>>> [field.name for field in fields(kbtrain.Label)][:3]  # a line of labels.jsonl
['question_id', 'split', 'llm']
""",
    "Passage": """
>>> kbtrain.Passage(id="p1", title="Faust", text="Faust is a play by Goethe.").title
'Faust'
""",
    "Question": """
>>> question = kbtrain.Question("q1", "Who wrote Faust?", ("Goethe",), "train", "mine")
>>> question.grading
'contains'
""",
    "Sample": """
>>> kbtrain.Sample(index=0, text="Goethe", n_tokens=3, finish="stop", logprob=-0.4).text
'Goethe'
""",
    "SampleSet": """
>>> greedy = kbtrain.Sample(index=-1, text="Goethe", n_tokens=3, finish="stop", logprob=-0.4)
>>> len(kbtrain.SampleSet("q1", "llm", (), greedy, 41).answers())
1
""",
    "Threshold": """
>>> kbtrain.Threshold(threshold=0.5, rule="best_accuracy", dev_file_sha256="0" * 64, n_dev=80).threshold
0.5
""",
    "TurnExample": """
>>> said = kbtrain.Utterance("USER", "Tell me about the museum.")
>>> kbtrain.TurnExample("t1", "d1", "test", 1, (said,)).context[0].text
'Tell me about the museum.'
""",
    "UserError": """
>>> try:
...     kbtrain.load_gate("runs/none")
... except kbtrain.UserError as error:
...     print("one line:", "\\n" not in str(error))
one line: True
""",
    "Utterance": """
>>> kbtrain.Utterance("USER", "Tell me about the museum.").speaker
'USER'
""",
    "answer": """
>>> found = kbtrain.answer(
...     ["Who wrote Faust?"],
...     "runs/demo/stack",
...     threshold=0.0,
...     llm=lambda prompt: "Goethe",
...     search=lambda question: ["Faust is a play by Goethe."],
... )
>>> found[0].retrieved, found[0].text
(True, 'Goethe')
""",
    "fit": """
>>> import json, pathlib
>>> rows = [{"question": f"Who made form {i}?", "gold": f"F{i}", "a": "unknown", "b": f"F{i}."} for i in range(80)]
>>> size = pathlib.Path("answers.jsonl").write_text("\\n".join(map(json.dumps, rows)))
>>> kbtrain.fit("answers.jsonl", "runs/mine", answers={"llm": "a", "rag": "b"}).decision[:15]
'A search helps:'
""",
    "is_correct": """
>>> question = kbtrain.Question("q1", "Who wrote Faust?", ("Goethe",), "train", "mine")
>>> kbtrain.is_correct(question, "It was Johann Wolfgang von Goethe.")
True
""",
    "load_gate": """
>>> gate = kbtrain.load_gate("runs/demo/stack", key="benefit")
>>> gate.needs_retrieval("Who wrote Faust?", threshold=0.0)
True
""",
    "open_llm": """
>>> llm = kbtrain.open_llm(kbtrain.LLMConfig(model="models/my-model", max_new_tokens=8))  # a folder, or a hub id
>>> found = kbtrain.answer(
...     ["Who wrote Faust?"], "runs/demo/stack", threshold=0.0, llm=llm, search=lambda question: ["A play by Goethe."]
... )
>>> isinstance(found[0].text, str)
True
""",
    "set_threshold": """
>>> chosen = kbtrain.Threshold(threshold=0.6, rule="given", dev_file_sha256="0" * 64, n_dev=80)
>>> kbtrain.set_threshold("runs/demo/stack", "stack_benefit", chosen)
>>> kbtrain.load_gate("runs/demo/stack").threshold
0.6
""",
}
