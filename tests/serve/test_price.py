"""A search at a price: the decision by what it is expected to gain, in a request and in the configuration."""

import shutil

import pytest
from serve_support import KNOWN, NEEDS, serving
from stub_upstream import StubUpstream

from kbtrain.errors import UserError
from kbtrain.gate.card import Outlook, Threshold, set_threshold
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.decide import Decider

MAP = Outlook(
    n=150, scores=(0.0, 1.0), helps=(0.0, 0.5), gain=(-0.2, 0.3), ece_before=0.21, ece=0.04, search_tokens=1000.0
)
PRICES = """
search: 0.001
million_tokens_in: 1.0
million_tokens_out: 1.0
machine_hour: 1.0
search_seconds: 0.4
seconds_per_1000_tokens_in: 0.1
seconds_per_1000_tokens_out: 10
"""


@pytest.fixture(scope="module")
def folder(gate, tmp_path_factory):
    made = tmp_path_factory.mktemp("price") / "probe"
    shutil.copytree(gate, made)
    chosen = Threshold(threshold=0.5, rule="given", dev_file_sha256="", n_dev=150, outlook=MAP)
    set_threshold(made, "encoder_probe", chosen)
    return made


@pytest.fixture(scope="module")
def prices(tmp_path_factory):
    path = tmp_path_factory.mktemp("prices") / "prices.yaml"
    path.write_text(PRICES)
    return path


@pytest.fixture(scope="module")
def server(folder, prices):
    search = "serve_support:echo"
    with StubUpstream() as stub, serving(folder, upstream=stub.url, search=search, prices=prices) as running:
        yield running


def test_decisions_say_what_a_search_is_expected_to_gain(server):
    (found,) = server.post("/v1/gate", {"questions": [NEEDS]}).json["decisions"]
    assert found["helps"] == pytest.approx(0.5 * found["score"])
    assert found["gain"] == pytest.approx(-0.2 + 0.5 * found["score"]) and found["probability"] == found["score"]
    asked = {"type": "predicate", "name": "s", "instructions": "Does answering this need retrieval?"}
    reply = server.post("/v1/decisions", {"input": NEEDS, "questions": [asked]}).json
    assert reply["answers"][0]["probability"] == pytest.approx(found["helps"])
    assert reply["kbtrain"]["gain"] == pytest.approx(found["gain"])


def test_a_request_may_name_the_gain_that_a_search_must_exceed(server):
    score = server.post("/v1/gate", {"questions": [NEEDS]}).json["decisions"][0]["score"]
    gain = -0.2 + 0.5 * score
    chat = {"model": "stub", "messages": [{"role": "user", "content": NEEDS}]}
    for price, retrieved in ((gain - 0.01, True), (gain + 0.01, False)):
        (found,) = server.post("/v1/gate", {"questions": [NEEDS], "price": price}).json["decisions"]
        assert found["retrieve"] is retrieved and found["threshold"] == pytest.approx((price + 0.2) / 0.5)
        headers = {"x-kbtrain-price": str(price), "x-kbtrain-debug": "true"}
        reply = server.post("/v1/chat/completions", chat, headers)
        assert reply.headers["x-kbtrain-retrieved"] == str(int(retrieved))
        assert float(reply.headers["x-kbtrain-gain"]) == pytest.approx(gain, abs=1e-5)
    assert not server.post("/v1/gate", {"questions": [NEEDS], "price": 1}).json["decisions"][0]["retrieve"]
    assert server.post("/v1/gate", {"questions": [KNOWN], "price": -1}).json["decisions"][0]["retrieve"]
    both = server.post("/v1/gate", {"questions": [NEEDS], "price": 0, "budget": 0.5})
    assert (both.status, both.error) == (400, "give one of threshold, budget, price, worth")
    assert server.post("/v1/chat/completions", chat, {"x-kbtrain-price": "2"}).status == 400


# a search costs 0.001 + 1000 tokens of 1e-6 USD; 1000 tokens; 400 ms + 1000 tokens of 0.1 ms
AMOUNTS = [("0.05 USD", 0.002 / 0.05), ("20,000 tokens", 0.05), ("5000 ms", 500 / 5000)]


@pytest.mark.parametrize(("worth", "price"), AMOUNTS)
def test_the_price_follows_from_what_a_right_answer_is_worth(folder, prices, worth, price):
    decider = Decider(ServeConfig(gate=folder, search="none", worth=worth, prices=prices))
    try:
        assert decider.loaded.price == pytest.approx(price)
        assert decider.threshold(decider.loaded) == pytest.approx((price + 0.2) / 0.5)
    finally:
        decider.close()


@pytest.mark.parametrize(("worth", "price"), AMOUNTS)
def test_a_request_may_name_what_a_right_answer_is_worth(server, worth, price):
    limit = pytest.approx((price + 0.2) / 0.5)
    (decision,) = server.post("/v1/gate", {"questions": [NEEDS], "worth": worth}).json["decisions"]
    assert decision["threshold"] == limit and decision["retrieve"] is (decision["score"] > decision["threshold"])
    headers = {"x-kbtrain-worth": worth}
    chat = {"model": "stub", "messages": [{"role": "user", "content": NEEDS}]}
    shown = server.post("/v1/chat/completions", chat, headers).headers["x-kbtrain-threshold"]
    assert float(shown) == pytest.approx((price + 0.2) / 0.5, abs=1e-5)
    asked = {"type": "predicate", "name": "s", "instructions": "Does answering this need retrieval?"}
    assert (
        server.post("/v1/decisions", {"input": NEEDS, "questions": [asked]}, headers).json["kbtrain"]["threshold"]
        == limit
    )


def test_an_amount_of_a_request_that_cannot_be_is_refused(server):
    chat = {"model": "stub", "messages": [{"role": "user", "content": NEEDS}]}
    for worth in ("5 apples", "0 ms", "-1 USD"):
        assert server.post("/v1/chat/completions", chat, {"x-kbtrain-worth": worth}).status == 400
        assert server.post("/v1/gate", {"questions": [NEEDS], "worth": worth}).error.startswith("key 'worth': expected")
    assert server.post("/v1/gate", {"questions": [NEEDS], "worth": 5}).error.startswith("field 'worth': expected an")


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"worth": "much"}, "key 'worth': expected an amount such as 2.5 USD"), ({"worth": "0 ms"}, "more than 0")],
)
def test_an_amount_that_cannot_be_is_one_line(folder, settings, says):
    with pytest.raises(UserError, match=says):
        Decider(ServeConfig(gate=folder, search="none", **settings))


def test_a_price_needs_a_map_of_the_gain(gate):
    with pytest.raises(UserError, match="key 'price': gate 'encoder_probe' has no map of what a search gains"):
        Decider(ServeConfig(gate=gate, search="none", price=0.02))
