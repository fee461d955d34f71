"""RAGate-MHA's networks beside each other: the recipe trains each once; tables show dev's and test's figures."""

import json

import mha_networks
from mha_networks import MhaNetworksConfig
from support.recipes import Recipe
from tiny_turns import turn

from kbtrain.io.jsonl import write


def test_inputs_are_trained_with_each_seed_by_the_recipe_and_compared_on_test(tmp_path, monkeypatch, capsys):
    sizes = {"train": 24, "dev": 12, "test": 12}
    write(tmp_path / "turns.jsonl", [turn(i, split) for split, n in sizes.items() for i in range(n)])

    class Done:
        returncode = 0

    def run(command, check):
        Recipe("ragate_mha")(command[2:])
        return Done

    monkeypatch.setattr(mha_networks.subprocess, "run", run)
    keys = {"epochs": 1, "vocabulary": 300, "max_length": 64, "device": "cpu"}
    config = MhaNetworksConfig(
        turns=tmp_path / "turns.jsonl", test=True, output=tmp_path / "out", layers=(1,), heads=(2,), sizes=(8,),
        inputs=("contx", "contx+resp"), seeds=(0, 1), recipe=keys,
    )  # fmt: skip
    mha_networks.main(config)
    rows = json.loads((tmp_path / "out" / "networks.json").read_text())
    named = [("contx", 0), ("contx+resp", 0), ("contx", 1), ("contx+resp", 1)]
    assert [(row["inputs"], row["seed"]) for row in rows] == named and all(
        row["run"]["best_epoch"] == 1 for row in rows
    )
    text = (tmp_path / "out" / "networks.md").read_text()
    assert text.count("h(2)-l(1)-emb(8)") == 2 and "contx - contx+resp" in text and " sd " in text
    capsys.readouterr()
    mha_networks.main(config)
    assert capsys.readouterr().out.count("finished already") == 4
    assert (tmp_path / "out" / "networks.md").read_text() == text
