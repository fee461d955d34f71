"""The gate of these tests, built once; the upstreams of a file."""

import pytest
from serve_support import probe_folder, serving
from stub_upstream import StubUpstream

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")


@pytest.fixture(scope="session")
def gate(tmp_path_factory):
    scores = [i / 100 for i in range(1, 100)]
    return probe_folder(tmp_path_factory.mktemp("serve") / "probe", dev_scores=scores)


@pytest.fixture(scope="module")
def server(gate):
    with serving(gate) as running:
        yield running


@pytest.fixture(scope="module")
def stub():
    with StubUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def upstream():
    from support.api_server import api_server

    with api_server() as running:
        yield running
