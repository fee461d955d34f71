"""Passages put into a request, by the project's one prompt rule.

``background`` puts what figures 10 and 12 say before the question in front of the user's own text, and leaves a
request without passages as it is. ``trained`` asks with the whole prompts that the gate's labels were made with: own
templates, whose system message takes the place of the request's, or figures 9 and 10. ``auto`` is ``trained`` for a
gate of own templates, else ``background``. Passages show their titles by the rule that the gate's card notes.
"""

from __future__ import annotations

from kbtrain.answers.chinese import language_of
from kbtrain.prompts.kbm import answer_prompt, background
from kbtrain.prompts.own import OwnPrompts
from kbtrain.records import Question
from kbtrain.serve.config import Injection, PromptRule
from kbtrain.serve.request_forms import Body, RequestForm


def with_evidence(
    form: RequestForm,
    body: Body,
    query: str,
    evidence: str | None,
    rule: PromptRule,
    injection: Injection,
    own: OwnPrompts | None = None,
    tools: bool = True,
) -> Body:
    """The request with the passages in it; the same object if there is nothing to change.

    ``own``: the gate's templates. ``tools``: the upstream takes declarations of tools.
    """
    if asks_whole(rule, own):
        return form.replace_question(body, whole_prompt(query, evidence, own), None if own is None else own.system)
    if evidence is None:
        return body
    if injection == "tool":
        return form.append_search(body, query, evidence, tools)
    put = form.extend_system if injection == "system" else form.precede_question
    return put(body, background(evidence, language_of(query)))


def asks_whole(rule: PromptRule, own: OwnPrompts | None) -> bool:
    """True if requests are asked with the whole prompts that the gate's labels were made with."""
    return rule == "trained" or (rule == "auto" and own is not None)


def whole_prompt(query: str, evidence: str | None, own: OwnPrompts | None = None) -> str:
    """Own templates, or figures 9 and 10."""
    question = Question("request", query, (), "test", "request", language_of(query))
    if own is not None:
        return own.render(question, evidence)
    return answer_prompt(question, "llm" if evidence is None else "rag", evidence)
