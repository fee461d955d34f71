"""The list of mutants fits the code: a text that no longer exists would be a mutant that nothing tries."""

from pathlib import Path

import pytest
from support import scripts

from kbtrain.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def module():
    return scripts.load("tools/mutants.py")


def test_every_mutant_stands_once_in_its_file(module):
    mutants, equivalent = module.read_mutants()
    every = [*mutants, *(mutant for mutant, _ in equivalent)]
    texts = {mutant.path: (ROOT / mutant.path).read_text(encoding="utf-8") for mutant in every}
    for mutant in every:
        assert mutant.made(texts[mutant.path]) != texts[mutant.path]  # raises where it does not stand there once
    assert len({(mutant.path, mutant.old, mutant.new) for mutant in every}) == len(every)
    named = {tuple(name.partition("::")[::2]) for mutant in mutants for name in mutant.tests}
    written = {file: (ROOT / "tests" / file).read_text(encoding="utf-8") for file, _ in named}
    assert not [f"{file}::{test}" for file, test in named if test and f"def {test}(" not in written[file]]
    assert len(mutants) >= 100 and all(mutant.tests for mutant in mutants) and all(why for _, why in equivalent)


def test_a_mutant_is_killed_by_a_test_that_notices_and_survives_one_that_does_not(module, tmp_path):
    (tmp_path / "kbtrain").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "kbtrain" / "__init__.py").touch()
    (tmp_path / "kbtrain" / "sums.py").write_text("def plus(a, b):\n    return a + b\n", encoding="utf-8")
    (tmp_path / "tests" / "test_sums.py").write_text(
        "from kbtrain.sums import plus\n\n\ndef test_zero():\n    assert plus(3, 0) == 3\n\n\n"
        "def test_two():\n    assert plus(2, 3) == 5\n",
        encoding="utf-8",
    )
    for tests, verdict in ((("test_sums.py",), "killed"), (("test_sums.py::test_zero",), "SURVIVES")):
        mutant = module.Mutant("kbtrain/sums.py", "a + b", "a - b", tests)
        assert module.passes(tests, tmp_path, 60, fresh=False) == 0
        assert module.tried(mutant, tmp_path, 60) == verdict
    broken = module.Mutant("kbtrain/sums.py", "def plus", "def minus", ("test_sums.py",))
    assert module.tried(broken, tmp_path, 60) == "does not run"
    assert "a + b" in (tmp_path / "kbtrain" / "sums.py").read_text(encoding="utf-8")
    with pytest.raises(UserError, match="'a \\* b' stands there 0 times"):
        module.tried(module.Mutant("kbtrain/sums.py", "a * b", "a", ("test_sums.py",)), tmp_path, 60)
