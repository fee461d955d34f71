"""The wire forms of decision models, as LiteLLM, LangChain and others speak them: one file, since they still move.

``/v1/decisions`` (OpenAI): a list of questions of type ``predicate``, answered by ``probability``. ``/v1/systemone``
(TypeSafe): a map of questions of type ``noul``, answered by P(yes). A gate can answer one question alone,
:data:`INSTRUCTIONS`; another one is refused rather than answered as if it were that one. Read in litellm 1.109.1,
langchain-openai 1.7.4 and langchain-typesafe 0.0.1a3.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from kbtrain.answers.words import normalise
from kbtrain.serve.chat import gate_input
from kbtrain.serve.decide import ServedDecision
from kbtrain.serve.exchange import Exchange
from kbtrain.serve.policy import Policy
from kbtrain.serve.problem import BadBody, Refused, read_object
from kbtrain.serve.service import Service
from kbtrain.serve.worker import Input

INSTRUCTIONS = "Does answering this need retrieval?"
MOST_QUESTIONS = 128
NOT_METERED = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}  # clients want numbers


async def decisions_route(service: Service, exchange: Exchange) -> None:
    """OpenAI's form: ``model``, ``input`` (text or messages), ``questions`` (a list)."""
    body = read_object(await exchange.body())
    model = _model(service, body)
    questions = body.get("questions")
    if not isinstance(questions, list) or not 1 <= len(questions) <= MOST_QUESTIONS:
        raise BadBody(f"expected a list of 1 to {MOST_QUESTIONS} questions", "questions")
    for place, question in enumerate(questions):
        _check(question, "predicate", f"questions[{place}]")
        if not isinstance(question.get("name"), str | None):
            raise BadBody(f"questions[{place}].name: expected text", "questions")

    def reply(probability: float) -> dict[str, Any]:
        rows = [{"name": q.get("name"), "type": "predicate", "probability": probability} for q in questions]
        return {"object": "decision", "model": model, "answers": rows}

    await _answer(service, exchange, "decisions", _value(service, body.get("input"), "input"), reply)


async def systemone_route(service: Service, exchange: Exchange) -> None:
    """TypeSafe's form: ``model``, ``state`` (text or messages), ``questions`` (a map)."""
    body = read_object(await exchange.body())
    model = _model(service, body)
    questions = body.get("questions")
    if not isinstance(questions, dict) or not 1 <= len(questions) <= MOST_QUESTIONS:
        raise BadBody(f"expected a map of 1 to {MOST_QUESTIONS} questions", "questions")
    for name, question in questions.items():
        _check(question, "noul", f"questions.{name:.40}")

    def reply(probability: float) -> dict[str, Any]:
        answers = {name: {"type": "noul", "noul": probability} for name in questions}
        return {"model": model, "answers": answers, "request_id": secrets.token_hex(12)}

    await _answer(service, exchange, "systemone", _value(service, body.get("state"), "state"), reply)


async def _answer(
    service: Service, exchange: Exchange, route: str, value: Input, reply: Callable[[float], dict[str, Any]]
) -> None:
    """Answer with the probability that a search helps where dev gave one, else with the gate's own.

    Raises :class:`Refused` for a gate without either.
    """
    gate = service.decider.loaded.gate
    if gate.unit is None and gate.outlook is None:
        message = f"the score of gate '{gate.name}' is not a probability; ask /v1/gate"
        raise Refused(400, "no_probability", message)

    async def work() -> None:
        exchange.moment = "gate"
        (decision,) = await service.decisions(route, [value], Policy.read(exchange.headers))
        probability = decision.probability if decision.helps is None else decision.helps
        assert probability is not None
        await exchange.json({**reply(probability), "usage": NOT_METERED, "kbtrain": _raw(decision)})

    await exchange.until_gone(work())


def _raw(decision: ServedDecision) -> dict[str, Any]:
    fields = decision.fields()
    return {"gate": decision.gate} | {
        name: fields[name] for name in ("score", "threshold", "retrieve", "helps", "gain", "id") if name in fields
    }


def _model(service: Service, body: dict[str, Any]) -> str:
    loaded, name = service.decider.loaded, body.get("model")
    if name not in {"kbtrain", loaded.name, loaded.gate.name} if isinstance(name, str) else name is not None:
        message = f"the decision model here is '{loaded.name}' (or '{loaded.gate.name}', or 'kbtrain')"
        raise Refused(404, "model_not_found", message, "model")
    return loaded.name


def _check(question: Any, kind: str, where: str) -> None:
    """Refuse any other question than the gate's."""
    if not isinstance(question, dict):
        raise BadBody(f"{where}: expected an object", "questions")
    if question.get("type") != kind:
        raise BadBody(f"{where}.type: this gate answers questions of type '{kind}' alone", "questions")
    instructions = question.get("instructions")
    alone = question.get("criteria") in (None, "", {}, [])
    if not alone or not isinstance(instructions, str) or normalise(instructions) != normalise(INSTRUCTIONS):
        message = f'{where}: this gate answers one question: instructions "{INSTRUCTIONS}", no criteria'
        raise BadBody(message, "questions")


def _value(service: Service, state: Any, field: str) -> Input:
    """Input of the gate. Raises :class:`Refused` for anything that it cannot read."""
    messages = [{"content": state}] if isinstance(state, str) else state
    if isinstance(messages, dict) and "messages" in messages:
        messages = messages["messages"]
    if isinstance(messages, list):
        messages = [{"role": "user", **m} if isinstance(m, dict) else m for m in messages]
    try:
        gated = gate_input(messages, service.config, service.decider.loaded.gate.reads)
    except Refused as refused:
        raise BadBody(f"expected text or messages ({refused})", field) from None
    if gated.value is None:
        raise BadBody(f"nothing here that the gate reads ({gated.reason})", field)
    return gated.value
