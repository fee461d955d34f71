"""One frozen dataclass per record that a stage hands to the next one.

``Question -> Evidence -> (samples in the store) -> Label -> GateExample -> GateScore -> Outcome``.
Every record is one JSON object a line (see :mod:`kbtrain.io.jsonl`); the field order here is the order in the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

DtypeName = Literal["auto", "bf16", "fp32", "fp16", "fp16-anyway"]
Split = Literal["train", "dev", "test"]
Condition = Literal["llm", "rag", "mask"]
# what gates read from passes of the answering model; kbtrain/llm/sampler/observer.py names the observer of each
Statistic = Literal["prompt_states", "draft_states", "entropies", "end_states"]
Form = Literal["open", "choice", "turn"]  # turn: the text is a dialogue, the answer its next response
Grading = Literal["exact", "contains", "option"]
Gold = Literal["given", "none", "hidden"]
Effect = Literal["beneficial", "neutral", "harmful"]
GATE_NAME = "[a-z][a-z0-9_]{0,99}"  # of a gate in scores and results: a column, a file of the report
Finish = Literal["eos", "stop", "length", "thought"]  # thought: it ended, and no answer followed its reasoning
Language = Literal["en", "zh"]
Speaker = Literal["USER", "SYSTEM"]
Titles = Literal["missing", "always", "never"]  # of passages, before their texts in a prompt; missing: not in the text

CONDITIONS: tuple[Condition, ...] = ("llm", "rag", "mask")
GREEDY = -1  # the sample index of the greedy answer
REFUSED = -2  # the sample index under which a store keeps the reason of a refusal
_RARE = {"omit_default": True}  # a field that is written only where it says something


@dataclass(frozen=True)
class Question:
    """A question with its reference answers.

    ``answers`` are aliases of one gold answer; for ``form == "choice"`` they are option letters ("A", "B", ...) and
    ``options`` holds the option texts in the order of their letters. ``popularity`` is a rank share in [0, 1]
    (1 = best known) or the data set's own number. ``entities`` are the ids by which the splits are kept apart.

    ``gold`` says why ``answers`` may be empty: ``none``, the question has no answer (SQuAD 2.0's impossible ones);
    ``hidden``, the data set does not publish it. ``context_passages`` are all passages that came with the question,
    in their order; ``gold_passages`` those of them that support the answer.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    split: Split
    dataset: str
    language: Language = "en"
    form: Form = "open"
    grading: Grading = "contains"
    options: tuple[str, ...] = ()
    relation: str | None = None
    hops: int | None = None
    popularity: float | None = None
    entities: tuple[str, ...] = ()
    gold_passages: tuple[str, ...] = ()
    gold: Gold = field(default="given", metadata=_RARE)
    fact_type: str | None = field(default=None, metadata=_RARE)
    false_premise: bool | None = field(default=None, metadata=_RARE)
    context_passages: tuple[str, ...] = field(default=(), metadata=_RARE)
    source: str = field(default="", metadata=_RARE)  # where it was asked: a data set, a product, a department


@dataclass(frozen=True)
class Passage:
    """A passage of the retrieval corpus."""

    id: str
    title: str
    text: str


@dataclass(frozen=True)
class Hit:
    """A retrieved passage with the retriever's score (higher = better), best first within an :class:`Evidence`."""

    passage_id: str
    title: str
    text: str
    score: float


@dataclass(frozen=True)
class Evidence:
    """Passages that one retriever found for one question, and the rule by which every prompt shows their titles. A file
    of an older version names none: there no title was shown."""

    question_id: str
    retriever: str
    query: str
    hits: tuple[Hit, ...]
    gold_found: bool | None = None  # is a gold passage among the hits? None: the data set names none
    mask_leak: tuple[str, ...] | None = None  # gold answers that masking leaves in the text; None: not looked for
    titles: Titles = field(default="never", metadata=_RARE)


@dataclass(frozen=True)
class Sample:
    """One generated answer. ``index`` counts samples from 0; -1 is the greedy answer.

    ``text`` is what follows the reasoning, if any; ``n_tokens`` and ``logprob`` count the tokens of the reasoning, too.
    ``logprob`` is the sum of the chosen tokens' natural log-probabilities at the sampling temperature.
    """

    index: int
    text: str
    n_tokens: int
    finish: Finish
    logprob: float


@dataclass(frozen=True)
class SampleSet:
    """All stored answers of one question under one condition. ``refused``: why the server refuses its prompt, as "kind:
    words"; then there are no answers."""

    question_id: str
    condition: Condition
    samples: tuple[Sample, ...]  # index 0..n-1, without the greedy one
    greedy: Sample | None
    prompt_tokens: int
    evidence_cut: int = 0  # tokens of evidence cut from the tail so that the prompt fits
    refused: str | None = field(default=None, metadata=_RARE)

    def answers(self) -> tuple[Sample, ...]:
        """The samples, the greedy answer before them."""
        return self.samples if self.greedy is None else (self.greedy, *self.samples)


@dataclass(frozen=True)
class Indicators:
    """Mastery and certainty of one question under one condition (KBM, section 3.2), each with a 95 % interval.

    Mastery is None for a question without gold answers. Certainty is None where nothing is known of it: a greedy
    answer alone (n = 1) says nothing of how answers agree, nor do answers that are mostly empty. ``n`` answers say
    something or are empty.
    """

    condition: Condition
    n: int
    n_correct: int
    mastery: float | None
    mastery_low: float | None
    mastery_high: float | None
    certainty: float | None
    certainty_low: float | None
    certainty_high: float | None
    n_groups: int
    n_empty: int
    greedy_correct: bool | None
    n_abstained: int = 0  # answers without a verdict; mastery = n_correct / (n - n_abstained)
    n_cut: int = 0  # of n, answers skipped: the tokens were used up before they began
    n_thought_only: int = 0  # of n, answers skipped: reasoning that no answer follows


@dataclass(frozen=True)
class Label:
    """Label of one question: soft values, hard labels and the effect of RAG, from its samples.

    ``known``/``certain`` are ``llm`` mastery > tau_mastery and certainty > tau_certainty; ``known_rag``/
    ``certain_rag`` the same under ``rag``. ``benefit`` = mastery(rag) - mastery(llm), in [-1, 1]. All about certainty
    is None where certainty is, all about mastery (benefit too) where mastery is.
    """

    question_id: str
    split: Split
    llm: Indicators
    rag: Indicators | None
    mask: Indicators | None
    tau_mastery: float
    tau_certainty: float
    known: bool | None
    certain: bool | None
    known_rag: bool | None
    certain_rag: bool | None
    benefit: float | None
    benefit_low: float | None
    benefit_high: float | None
    effect_mastery: Effect | None
    effect_certainty: Effect | None
    relation: str | None = None


Target = Literal["mastery", "certainty", "benefit", "time_sensitive"]
OF_QUESTION: frozenset[Target] = frozenset({"time_sensitive"})  # for any model: hard labels
# True speaks for retrieval; of the others, against it
NEEDS_RETRIEVAL: frozenset[Target] = OF_QUESTION | {"benefit"}


@dataclass(frozen=True)
class GateExample:
    """One training (or scoring) example of a question gate: the question, its reference and its targets.

    ``reference`` is None for the plain question (``Reference: None`` in the prompt). Soft targets are in [0, 1]:
    mastery, certainty, and benefit stretched from its range in training; None where the label is not known (scoring).
    ``hits``: passages found, with the retriever's scores, for gates that are asked after the search; ``titles``: the
    rule by which a prompt shows theirs. ``time_sensitive`` is a fact about the question, not about the model (UAR,
    arXiv 2406.12534); None where the data set does not give it. ``entities``: by which splits and runs are kept apart;
    no gate reads them. ``source``: where it was asked.
    """

    id: str
    question_id: str
    split: Split
    question: str
    language: Language
    reference: str | None
    mastery: bool | None = None
    certainty: bool | None = None
    benefit: bool | None = None
    soft_mastery: float | None = None
    soft_certainty: float | None = None
    soft_benefit: float | None = None
    relation: str | None = None
    hits: tuple[Hit, ...] = field(default=(), metadata=_RARE)
    time_sensitive: bool | None = field(default=None, metadata=_RARE)
    entities: tuple[str, ...] = field(default=(), metadata=_RARE)
    titles: Titles = field(default="missing", metadata=_RARE)
    source: str = field(default="", metadata=_RARE)

    @classmethod
    def ask(
        cls, question: str, reference: str | None = None, language: Language = "en", hits: Sequence[Hit] = ()
    ) -> GateExample:
        """An example to be scored, from the bare text of a question and the passages found for it."""
        return cls(question, question, "test", question, language, reference, hits=tuple(hits))


@dataclass(frozen=True)
class GateScore:
    """A gate's score for one question: higher = retrieval more needed."""

    question_id: str
    gate: str
    score: float


@dataclass(frozen=True)
class Decision:
    """A gate's decision: ``retrieve`` where ``score`` > ``threshold``, unless ``reason`` is a kind of utterance.

    ``probability`` that retrieval is needed, in [0, 1] and not calibrated, where the score states one; else None.
    ``reason``: ``above-threshold``, ``below-threshold``, ``always``, ``never`` or a
    :data:`~kbtrain.utterances.UtteranceKind`.
    """

    score: float
    probability: float | None
    threshold: float
    retrieve: bool
    reason: str = ""


@dataclass(frozen=True)
class Outcome:
    """Outcome of one question with and without retrieval.

    ``*_correct`` grade the greedy answers; ``*_expected`` are mean masteries (expected accuracy of one sampled
    answer, far less noisy) where samples exist. ``*_tokens`` count the greedy answer's generated tokens.
    """

    question_id: str
    split: Split
    relation: str | None
    llm_correct: bool
    rag_correct: bool
    llm_expected: float | None
    rag_expected: float | None
    llm_tokens: int
    rag_tokens: int


@dataclass(frozen=True)
class Entity:
    """A named thing in an utterance, its type (slot or NER label) and its source: ``sgd`` (the data set's slot spans),
    ``spacy:MODEL`` or ``gliner:MODEL``."""

    text: str
    type: str
    source: str


@dataclass(frozen=True)
class Utterance:
    """One turn of a dialogue; ``services`` and ``acts`` as the data set annotates this very turn, else empty."""

    speaker: Speaker
    text: str
    services: tuple[str, ...] = ()
    acts: tuple[str, ...] = ()
    entities: tuple[Entity, ...] = ()


@dataclass(frozen=True)
class Snippet:
    """A piece of knowledge of one dialogue, or of all (``dialogue_id`` None)."""

    id: str
    dialogue_id: str | None
    title: str
    text: str


@dataclass(frozen=True)
class TurnExample:
    """One system turn that may need knowledge (RAGate): ``context`` is all that was said before it, ending with the
    user's utterance; ``label`` is True if people enriched the turn.

    What a gate may read: ``context``, ``turn`` (0 = the dialogue's first utterance), ``services`` (named so far, the
    latest last) and the features ``synthetic_response``, ``entities``, ``knowledge``, ``source``. What lies in the
    future: ``response``, ``response_acts`` and ``response_actions`` (acts with slots and values, "OFFER name = Sino"),
    ``position`` (``turn`` / all turns of the dialogue, for analysis) and ``gold_snippets``.
    """

    id: str
    dialogue_id: str
    split: Split
    turn: Annotated[int, Field(ge=0)]
    context: Annotated[tuple[Utterance, ...], Field(min_length=1)]
    services: tuple[str, ...] = ()
    label: bool | None = None
    response: str | None = None
    response_acts: tuple[str, ...] = ()
    enriched_response: str | None = None
    gold_snippets: tuple[str, ...] = ()
    position: float | None = None
    synthetic_response: str | None = None
    entities: tuple[Entity, ...] | None = None
    knowledge: tuple[Hit, ...] | None = None
    source: str | None = None
    response_actions: tuple[str, ...] = field(default=(), metadata=_RARE)


Example = GateExample | TurnExample  # what gates score
