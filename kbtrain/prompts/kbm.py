"""KBM prompts, English and Chinese, and the renderer that sampling, training and inference share.

Texts are the figures of the KBM paper to the letter (spaces before line breaks included); kbtrain's are marked.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from kbtrain.errors import UserError
from kbtrain.prompts.template_marks import break_marks, break_special_tokens
from kbtrain.records import Condition, Form, Hit, Language, Question, Titles

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Key = Literal["mastery", "certainty", "benefit"]
PAPER_KEYS: tuple[Key, ...] = ("mastery", "certainty")
DEFAULT_KEYS: tuple[Key, ...] = ("mastery", "certainty", "benefit")  # of recipes that learn several
NO_REFERENCE = "None"
_PROBE = "probe"

_EVIDENCE = {"en": "Here's some background information: {evidence}\n", "zh": "这里有一些背景资料: {evidence}\n"}
_OPEN = {  # figure 9; figure 10 adds the evidence, and in Chinese another first line and no last space
    "en": "Given the following question, give the concise sentence/phrase/noun/entity as answer:\n"
    "question: {query}\nanswer: ",
    "zh": "给定以下问题,给出最简洁的短语/名词/实体作为答案:\n问题: {query}\n答案: ",
}
_OPEN_RAG = {
    "en": _EVIDENCE["en"] + _OPEN["en"],
    "zh": _EVIDENCE["zh"] + "现在给定以下问题,给出最简洁的短语/名词/实体作为答案:\n问题: {query}\n答案:",
}
_CHOICE = {  # figures 11 and 12
    "en": "Given the following multiple choice questions, only output the options corresponding to the correct "
    "answers (e.g A/B/C/D...), and do not output other content:\nquestion: {query}\nanswer: ",
    "zh": "给定以下多项选择题, 仅输出正确答案所在的选项(A/B/C/D/E):\n问题: {query}\n答案: ",
}
_TURN = (  # kbtrain's: a system's next response in a dialogue
    "Below is a dialogue of a USER and a SYSTEM. Write the SYSTEM's next response, in one or two sentences.\n"
    "{query}\nSYSTEM: "
)
_KBM_HEAD = {  # figure 14
    "en": "Please assess your mastery and certainty regarding the question based on the information below.\n"
    "Reference: {reference} \nQuestion: {query} \n",
    "zh": "给定一个问题,评估你在此问题上的熟练度(mastery)以及确定性(certainty)\n参考资料: {reference}\n问题:{query}\n",
}
_KBM_ASK = {
    "en": "Please respond: Do you fully master this question? (mastery: True/False); Are you confident in your "
    "ability to answer this question? (certainty: True/False){benefit} \nAnswer: ",
    "zh": "请回答: 你是否完全掌握此问题? (mastery: True/False); 你对自己能回答这个问题有信心吗? "
    "(certainty: True/False){benefit}\n 输出: ",
}
_KBM_BENEFIT = {  # kbtrain's: the third key
    "en": "; Would retrieved information improve your answer? (benefit: True/False)",
    "zh": "; 检索到的资料会改善你的回答吗? (benefit: True/False)",
}
INSTRUCTIONS = "Does answering this need retrieval?"  # to a decision model (decision_model, /v1/decisions)
_NEED = {  # kbtrain's: the prompting baseline of section 4.2, in the form of figure 14
    "en": "Do you need additional information to answer the question below?\nQuestion: {query} \n"
    "Please respond: (need: True/False) \nAnswer: ",
    "zh": "回答下面的问题, 你是否需要更多资料?\n问题:{query}\n请回答: (need: True/False)\n 输出: ",
}
_JUDGE = {  # figure 13 (Chinese); the English one is kbtrain's, in its form. The question is skipped on purpose (A.2)
    "en": "Given a prediction and an answer, output 1 if the prediction contains the answer, and 0 if it does not.\n"
    "prediction: {pred}\nanswer: {answer}\noutput: ",
    "zh": "给定预测和答案,如果预测中含有答案请输出1,不包含则输出0.\n预测: {pred}\n答案: {answer}\n输出: ",
}


class Judgement(Question):
    """Answer to judge by figure 13's prompt: ``text`` is the predicted answer, ``answers`` are the gold ones."""


def query_text(question: Question) -> str:
    """Text of a question in a prompt, for multiple choice with one line per option."""
    letters = (f"\n{chr(65 + i)}. {option}" for i, option in enumerate(question.options))
    return question.text + "".join(letters)


def form_of(query: str) -> Form:
    """Form of a question by its :func:`query_text`, where that is all that is known of it."""
    return "choice" if "\nA. " in query and "\nB. " in query else "open"


def evidence_text(hits: Sequence[Hit], titles: Titles = "missing") -> str | None:
    """The hits joined as in the paper ("the retrieved chunks are spliced together"), best first; None: nothing found.

    Sampling, labels and use share this rule. The paper shows no titles; kbtrain does, since a text often says "he" or
    "the city" of what its title names. Passages are data: marks of chat templates in them are broken
    (:mod:`kbtrain.prompts.template_marks`).
    """
    text = "\n".join(hit_text(hit, titles) for hit in hits)
    return text if text.strip() else None


def hit_text(hit: Hit, titles: Titles) -> str:
    """A passage as a prompt shows it: "Title: text" or the text alone."""
    title, text = break_marks(hit.title).strip(), break_marks(hit.text)
    with_title = titles == "always" or (titles == "missing" and not _stands_in(title, text))
    return f"{title}: {text}" if title and with_title else text


def _stands_in(title: str, text: str) -> bool:
    """True if the text has the title as whole words, in any case of letters."""
    return re.search(rf"(?<![a-z0-9]){re.escape(_plain(title))}(?![a-z0-9])", _plain(text)) is not None


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def answer_prompt(question: Question, condition: Condition, evidence: str | None = None) -> str:
    """The prompt that asks for an answer: figures 9 and 11 (``llm``), 10 and 12 (``rag``, ``mask``).

    Without evidence (a search that found nothing) ``rag`` and ``mask`` ask as ``llm`` does, as in use.
    Of a ``turn`` (its text is the dialogue so far) it asks for the system's response, by kbtrain's prompt.
    """
    if condition == "llm" and evidence is not None:
        raise ValueError("condition 'llm' takes no evidence")
    evidence = evidence or None
    if isinstance(question, Judgement):
        return judge_prompt(question.text, question.answers, question.language)
    if question.form == "turn":
        template = ("" if evidence is None else _EVIDENCE["en"]) + _TURN
    elif question.form == "choice":
        template = ("" if evidence is None else _EVIDENCE[question.language]) + _CHOICE[question.language]
    else:
        template = (_OPEN if evidence is None else _OPEN_RAG)[question.language]
    # format() never looks into the inserted values, so braces in a question or passage are safe
    return template.format(query=query_text(question), evidence=evidence)


def background(evidence: str, language: Language) -> str:
    """The evidence alone, as figures 10 and 12 put it before the question."""
    return _EVIDENCE[language].format(evidence=evidence)


def kbm_prompt(query: str, reference: str | None, language: Language, keys: Sequence[Key] = PAPER_KEYS) -> str:
    """Figure 14's prompt; the key ``benefit`` adds kbtrain's question in the same form."""
    more = _KBM_BENEFIT[language] if "benefit" in keys else ""
    head = _KBM_HEAD[language].format(reference=reference or NO_REFERENCE, query=query)
    return head + _KBM_ASK[language].format(benefit=more)


def kbm_answer(values: dict[Key, bool]) -> str:
    """Figure 14's answer, e.g. ``{"mastery": "True", "certainty": "False"}``, keys in the order given."""
    return "{" + ", ".join(f'"{key}": "{value}"' for key, value in values.items()) + "}"


def judge_prompt(prediction: str, gold: Sequence[str], language: Language) -> str:
    """Figure 13's prompt; several reference answers are joined by " / "."""
    return _JUDGE[language].format(pred=prediction, answer=" / ".join(gold))


def need_prompt(query: str, language: Language) -> str:
    """The prompting baseline: a prompt for the untrained model to state if it needs more information (True/False)."""
    return _NEED[language].format(query=query)


def need_answer(value: bool) -> str:
    """The baseline's answer, e.g. ``{"need": "True"}``."""
    return f'{{"need": "{value}"}}'


_WIDEST = 1_000_000  # characters that a template may add to a dialogue
# A date would change a prompt by tomorrow. Both names of a switch ask a model not to think before it answers:
# enable_thinking (Qwen3, GLM, SmolLM3, EXAONE, Hunyuan), thinking (DeepSeek-V3.1, Granite, Kimi).
TEMPLATE_OPTIONS: dict[str, Any] = dict(
    add_generation_prompt=True, enable_thinking=False, thinking=False, date_string="26 Jul 2024"
)


def render_chat(tokenizer: PreTrainedTokenizerBase | None, prompt: str, system: str | None = None) -> str:
    """The text a model reads: its chat template with ``prompt`` as the user's turn, or the prompt itself.

    The date that some templates insert is fixed, so that a prompt is the same tomorrow, and a model that may think
    before it answers (Qwen3, SmolLM3) gets the option not to. No tokenizer: a server has the template. Raises
    :class:`UserError` if it fails, or leaves ``prompt`` (all scores would be the same) or ``system`` out.
    """
    if tokenizer is None or not tokenizer.chat_template:
        return prompt if system is None else f"{system}\n{prompt}"
    prompt = break_special_tokens(tokenizer, prompt)  # the template writes its own
    rendered = apply_template(tokenizer, chat_messages(prompt, system), **TEMPLATE_OPTIONS)
    for role, text in (("user", prompt), ("system", system or "")):
        lines = [line for line in map(str.strip, text.splitlines()) if line]
        if lines and not any(line in rendered for line in lines):
            raise UserError(f"model '{tokenizer.name_or_path}': its chat template drops the {role}'s message")
    return rendered


def chat_messages(text: str, system: str | None = None) -> list[dict[str, str]]:
    """The messages of a question: the system's, if there is one, and the user's."""
    return [*([] if system is None else [{"role": "system", "content": system}]), {"role": "user", "content": text}]


def apply_template(tokenizer: PreTrainedTokenizerBase, turns: Sequence[Mapping[str, str]], **options: Any) -> str:
    """The text that a tokenizer's chat template makes of a dialogue.

    Raises :class:`UserError` for a template that fails: it is a program out of the model's folder, which can raise
    anything; and for one that writes too much.
    """
    try:
        text = str(tokenizer.apply_chat_template([dict(turn) for turn in turns], tokenize=False, **options))
        if len(text) > _WIDEST + 2 * sum(len(str(turn)) for turn in turns):
            raise ValueError(f"it writes {len(text):,} characters")
        return text
    except Exception as error:  # noqa: BLE001 - a program out of a folder: it raises what it likes
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise UserError(f"model '{tokenizer.name_or_path}': its chat template fails ({first})") from None


def end_token(tokenizer: PreTrainedTokenizerBase) -> str:
    """The token that a tokenizer ends a text with. Raises :class:`UserError` for one that has none."""
    if not tokenizer.eos_token or tokenizer.eos_token_id is None:
        name = tokenizer.name_or_path
        raise UserError(f"tokenizer of '{name}': it has no EOS token, so a model could not learn to stop")
    return str(tokenizer.eos_token)


def encode(tokenizer: PreTrainedTokenizerBase, prompt: str, system: str | None = None, reply: str = "") -> list[int]:
    """Token ids of the rendered prompt and of ``reply``, its answer so far. A chat template writes its own special
    tokens; plain text gets BOS here."""
    plain = not tokenizer.chat_template
    ids: list[int] = tokenizer(render_chat(tokenizer, prompt, system) + reply, add_special_tokens=plain)["input_ids"]
    if plain and ids and ids[-1] == tokenizer.eos_token_id:
        ids = ids[:-1]  # some tokenizers close plain text with EOS, after which a model generates nothing
    return ids


def without_end(tokenizer: PreTrainedTokenizerBase, text: str, excess: int) -> tuple[str, int]:
    """The text without its last ``excess`` tokens, and how many these are: all of a shorter one. No half of a character
    stays: it would be as many tokens as before."""
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    n = min(excess, len(tokens))
    shorter = str(tokenizer.decode(tokens[: len(tokens) - n])).rstrip("\N{REPLACEMENT CHARACTER}")
    return shorter if len(shorter) < len(text) else text[:-1], n


def fingerprint(tokenizer: PreTrainedTokenizerBase | None, *prompts: str) -> str:
    """16 hex digits that change when a prompt's text, the chat template or its rendering changes."""
    rendered = "\0".join(render_chat(tokenizer, prompt) for prompt in prompts)
    return hashlib.sha256(rendered.encode()).hexdigest()[:16]


def answer_fingerprint(tokenizer: PreTrainedTokenizerBase | None) -> str:
    """Fingerprint of all prompts that ask for answers (figures 9-12, both languages)."""
    texts = [table[lang] for table in (_OPEN, _OPEN_RAG, _EVIDENCE, _CHOICE) for lang in ("en", "zh")]
    return fingerprint(tokenizer, *texts)


def kbm_fingerprint(tokenizer: PreTrainedTokenizerBase, keys: Sequence[Key]) -> str:
    """Fingerprint of a KBM's prompts (figure 14's) and answers with these keys."""
    prompts = [kbm_prompt(_PROBE, None, lang, keys) for lang in ("en", "zh")]
    return fingerprint(tokenizer, *prompts, kbm_answer(dict.fromkeys(keys, True)))


def need_fingerprint() -> str:
    """Fingerprint of the prompting baseline's prompts and answers, both languages, without a chat template."""
    return fingerprint(None, *(need_prompt(_PROBE, lang) for lang in ("en", "zh")), need_answer(True))


_FIRST_JUDGE_PROMPT = "3ecdd85f478b9044"  # of verdicts stored without a fingerprint


def judge_prompt_facts() -> dict[str, str]:
    """``judge_prompt``, the fingerprint of the words of a judge's prompt; empty for the first prompt."""
    both: tuple[Language, ...] = ("en", "zh")
    pair = (_PROBE, _PROBE)  # two, so that what joins them counts
    code = fingerprint(None, *(judge_prompt(_PROBE, pair, language) for language in both))
    return {} if code == _FIRST_JUDGE_PROMPT else {"judge_prompt": code}
