"""The gate of these tests, and a server of it."""

import pytest
from serve_support import serving
from support.long_questions import long_question_gate


@pytest.fixture(scope="session")
def gate(tmp_path_factory):
    return long_question_gate(tmp_path_factory.mktemp("adapters") / "gate", middle=19)  # between KNOWN and NEEDS


@pytest.fixture(scope="session")
def server(gate, tmp_path_factory):
    pytest.importorskip("starlette")
    pytest.importorskip("prometheus_client")
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text("a-key-of-the-tests\n")
    with serving(gate, keys=keys) as running:
        yield running
