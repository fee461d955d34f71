"""The wire forms of decision models, as LiteLLM, LangChain and others speak them: one file, since they still move.

``/v1/decisions`` (OpenAI): a list of questions of type ``predicate``, answered by ``probability``. ``/v1/systemone``
(TypeSafe): a map of questions of type ``noul``, answered by P(yes). A gate can answer one question alone,
:data:`INSTRUCTIONS`; another one is refused rather than answered as if it were that one. Read in litellm 1.109.1,
langchain-openai 1.7.4 and langchain-typesafe 0.0.1a3.
"""

from __future__ import annotations

import secrets
from typing import Any, TypeVar

from kbtrain.answers.words import normalise
from kbtrain.serve.body import read_object
from kbtrain.serve.chat import gate_input
from kbtrain.serve.decide import ServedDecision
from kbtrain.serve.exchange import Exchange
from kbtrain.serve.policy import Policy
from kbtrain.serve.problem import Refused
from kbtrain.serve.service import Service
from kbtrain.serve.worker import Input

INSTRUCTIONS = "Does answering this need retrieval?"
MOST_QUESTIONS = 128
T = TypeVar("T", list[Any], dict[str, Any])
NOT_METERED = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}  # clients want numbers


async def decisions_route(service: Service, exchange: Exchange) -> None:
    """OpenAI's form: ``model``, ``input`` (text or messages), ``questions`` (a list)."""
    body = read_object(await exchange.body())
    model = _model(service, body)
    questions = _questions(body, list, "list")
    for place, question in enumerate(questions):
        _check(question, "predicate", f"questions[{place}]")
        if not isinstance(question.get("name"), str | None):
            raise _bad("questions", f"questions[{place}].name: expected text")
    value = _value(service, body.get("input"), "input")

    async def work() -> None:
        decision, probability = await _decided(service, exchange, "decisions", value)
        named = ({"name": question.get("name"), "type": "predicate"} for question in questions)
        answers = [{**one, "probability": probability} for one in named]
        made = {"object": "decision", "model": model, "answers": answers, "usage": NOT_METERED}
        await exchange.json({**made, "kbtrain": _raw(decision)})

    await exchange.until_gone(work())


async def systemone_route(service: Service, exchange: Exchange) -> None:
    """TypeSafe's form: ``model``, ``state`` (text or messages), ``questions`` (a map)."""
    body = read_object(await exchange.body())
    model = _model(service, body)
    questions = _questions(body, dict, "map")
    for name, question in questions.items():
        _check(question, "noul", f"questions.{name:.40}")
    value = _value(service, body.get("state"), "state")

    async def work() -> None:
        decision, probability = await _decided(service, exchange, "systemone", value)
        answers = {name: {"type": "noul", "noul": probability} for name in questions}
        made = {"model": model, "answers": answers, "usage": NOT_METERED, "request_id": secrets.token_hex(12)}
        await exchange.json({**made, "kbtrain": _raw(decision)})

    await exchange.until_gone(work())


def _questions(body: dict[str, Any], shape: type[T], name: str) -> T:
    """The questions of a request. Raises :class:`Refused` for another shape, none, or too many."""
    found = body.get("questions")
    if not isinstance(found, shape) or not 1 <= len(found) <= MOST_QUESTIONS:
        raise _bad("questions", f"expected a {name} of 1 to {MOST_QUESTIONS} questions")
    return found


async def _decided(service: Service, exchange: Exchange, route: str, value: Input) -> tuple[ServedDecision, float]:
    """The decision and its probability: that a search helps where dev taught it, else the gate's own.

    Raises :class:`Refused` for a gate without either.
    """
    gate = service.decider.loaded.gate
    if gate.unit is None and gate.outlook is None:
        message = f"the score of gate '{gate.name}' is not a probability; ask /v1/gate"
        raise Refused(400, "no_probability", message)
    exchange.moment = "gate"
    (decision,) = await service.decisions(route, [value], Policy.read(exchange.headers).aim)
    probability = decision.probability if decision.helps is None else decision.helps
    assert probability is not None
    return decision, probability


def _raw(decision: ServedDecision) -> dict[str, Any]:
    return {"gate": decision.gate, "score": decision.score, "threshold": decision.threshold,
            "retrieve": None if decision.threshold is None else decision.retrieve,
            "helps": decision.helps, "gain": decision.gain,
            **({"id": decision.request_id} if decision.request_id else {})}  # fmt: skip


def _model(service: Service, body: dict[str, Any]) -> str:
    loaded, given = service.decider.loaded, body.get("model")
    if given not in {"kbtrain", loaded.name, loaded.gate.name} if isinstance(given, str) else given is not None:
        message = f"the decision model here is '{loaded.name}' (or '{loaded.gate.name}', or 'kbtrain')"
        raise Refused(404, "model_not_found", message, "model")
    return loaded.name


def _check(question: Any, kind: str, where: str) -> None:
    """Refuse any other question than the gate's."""
    if not isinstance(question, dict):
        raise _bad("questions", f"{where}: expected an object")
    if question.get("type") != kind:
        raise _bad("questions", f"{where}.type: this gate answers questions of type '{kind}' alone")
    given = question.get("instructions")
    alone = question.get("criteria") in (None, "", {}, [])
    if not alone or not isinstance(given, str) or normalise(given) != normalise(INSTRUCTIONS):
        raise _bad("questions", f'{where}: this gate answers one question: instructions "{INSTRUCTIONS}", no criteria')


def _value(service: Service, given: Any, field: str) -> Input:
    """Input of the gate. Raises :class:`Refused` for anything that it cannot read."""
    if isinstance(given, str):
        messages: Any = [{"role": "user", "content": given}]
    elif isinstance(given, dict) and "messages" in given:
        messages = given["messages"]
    else:
        messages = given
    if isinstance(messages, list):
        messages = [{"role": "user", **m} if isinstance(m, dict) else m for m in messages]
    try:
        found = gate_input(messages, service.config, service.decider.loaded.gate.reads)
    except Refused as refused:
        raise _bad(field, f"expected text or messages ({refused})") from None
    if found.value is None:
        raise _bad(field, f"nothing here that the gate reads ({found.reason})")
    return found.value


def _bad(param: str, message: str) -> Refused:
    return Refused(400, "body", f"field '{param}': {message}", param)
