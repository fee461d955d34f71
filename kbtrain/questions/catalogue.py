"""The data sets that can be read: where to get each, its licence, and what its loader keeps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

from kbtrain.io import jsonl
from kbtrain.questions.base import DataSet, Loaded, Reading, any_table, native
from kbtrain.questions.checks import read_questions
from kbtrain.questions.data_sets.columns import csv_questions, hub_questions, jsonl_questions
from kbtrain.questions.data_sets.multi_hop import hotpotqa, iirc, musique, two_wiki
from kbtrain.questions.data_sets.multiple_choice import ceval, cmmlu, commonsense, mlec_qa, mmlu, openbookqa, xiezhi
from kbtrain.questions.data_sets.open_domain import freshqa, nq_open, popqa, triviaqa
from kbtrain.questions.data_sets.reading_comprehension import sogouqa, squad, webqa
from kbtrain.questions.reading.files import FEW_SHOT_SPLITS
from kbtrain.questions.reading.tables import OBJECTS, PARQUET, TABLES
from kbtrain.records import Passage


def _atlas(path: Path, reading: Reading) -> Iterator[Loaded]:
    return (Loaded(question, str(path), number) for number, question in read_questions(path))


_TOPICS = (".train.txt", ".dev.txt", ".test.txt")  # Pyserini's names

DATA_SETS: dict[str, DataSet] = {
    "atlas": DataSet(
        _atlas,
        "embedded, needs no path",
        "CC BY 4.0 (GeoNames), MIT (mendeleev)",
        "relation, hops, popularity, entities, options, gold passages",
    ),
    "atlas_known": DataSet(
        _atlas,
        "embedded, needs no path: open questions, most about well-known things",
        "CC BY 4.0 (GeoNames), MIT (mendeleev)",
        "as of atlas",
    ),
    "jsonl": DataSet(
        any_table(jsonl_questions, *OBJECTS),
        "your own: {question, answers} a line; other names by columns",
        "yours",
        "every field of a question, contexts",
        by_columns=True,
    ),
    "csv": DataSet(
        any_table(csv_questions, *TABLES),
        "your own: a table whose first row names the columns",
        "yours",
        "every field of a question, contexts",
        by_columns=True,
    ),
    "datasets": DataSet(
        hub_questions,
        "Hugging Face datasets: OWNER/NAME, or a folder or file (.parquet) on disk",
        "see its page",
        "every field of a question, contexts",
        by_columns=True,
    ),
    "nq_open": DataSet(
        native(nq_open, *OBJECTS, *TABLES, *_TOPICS),
        "github.com/google-research-datasets/natural-questions (nq_open), github.com/facebookresearch/DPR (*.qa.csv, "
        "Pyserini's topics.dpr.*.txt)",
        "CC BY-SA 3.0",
        "answers, passages and gold passages where the file has ctxs",
        download="https://raw.githubusercontent.com/google-research-datasets/natural-questions/master/nq_open/"
        "NQ-open.dev.jsonl",
    ),
    "triviaqa": DataSet(
        native(triviaqa, *OBJECTS, *TABLES, *_TOPICS),
        "nlp.cs.washington.edu/triviaqa, one of qa/*.json (only: '*wikipedia-*'); DPR's *.qa.csv, topics.dpr.*.txt",
        "Apache 2.0",
        "all aliases; hidden answers (test)",
        download="https://nlp.cs.washington.edu/triviaqa/data/triviaqa-rc.tar.gz",
    ),
    "squad": DataSet(
        native(squad, *OBJECTS),
        "rajpurkar.github.io/SQuAD-explorer (1.1, 2.0)",
        "CC BY-SA 4.0",
        "gold passage, impossible questions",
        download="https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v1.1.json",
    ),
    "squad_zh": DataSet(
        native(partial(squad, dataset="squad_zh", language="zh"), *OBJECTS),
        "SQuAD's layout in Chinese: github.com/ymcui/cmrc2018, github.com/DRCKnowledgeTeam/DRCD, translated SQuAD",
        "CC BY-SA 4.0 (CMRC 2018), 3.0 (DRCD)",
        "gold passage, impossible questions",
    ),
    "hotpotqa": DataSet(
        native(hotpotqa, *OBJECTS),
        "hotpotqa.github.io (distractor, fullwiki), the hub's Parquet, or its questions alone",
        "CC BY-SA 4.0",
        "type as relation, hops, passages, gold passages",
        download="http://curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json",
    ),
    "2wikimultihopqa": DataSet(
        two_wiki,
        "github.com/Alab-NII/2wikimultihop, data_ids_april7.zip (with id_aliases.json)",
        "Apache 2.0",
        "aliases, type as relation, hops, entities, passages, gold passages",
        download="https://www.dropbox.com/s/ms2m13252h6xubs/data_ids_april7.zip?dl=1",
    ),
    "musique": DataSet(
        native(musique, *OBJECTS, leave_out="single_hop"),
        "github.com/StonyBrookNLP/musique (Ans, Full)",
        "CC BY 4.0",
        "aliases, hops, kind of hops as relation, passages, gold passages, unanswerable questions",
    ),
    "iirc": DataSet(
        native(iirc, ".json", leave_out="context_articles"),
        "allenai.org/data/iirc (train.json, dev.json)",
        "see its page",
        "answer type as relation, hops, gold passages, questions without an answer",
        download="https://iirc-dataset.s3.us-west-2.amazonaws.com/iirc_train_dev.tgz",
    ),
    "popqa": DataSet(
        native(popqa, *OBJECTS, *TABLES),
        "github.com/AlexTMallen/adaptive-retrieval (popQA.tsv)",
        "MIT",
        "popularity (s_pop), relation, entity, passages where the file has paragraphs",
        download="https://raw.githubusercontent.com/AlexTMallen/adaptive-retrieval/main/data/popQA.tsv",
    ),
    "freshqa": DataSet(
        native(freshqa, ".csv"),
        "github.com/freshllms/freshqa (a dated table, saved as CSV)",
        "Apache 2.0",
        "up to ten answers, fact type, hops, false premise, split",
    ),
    "openbookqa": DataSet(
        native(openbookqa, ".jsonl", PARQUET, leave_out="Additional/"),
        "allenai.org/data/open-book-qa (its zip: Main; only: '*complete*' is skipped); ARC has the same layout",
        "see its page",
        "options, fact as gold passage in the complete files",
        download="https://ai2-public-datasets.s3.amazonaws.com/open-book-qa/OpenBookQA-V1-Sep2018.zip",
    ),
    "commonsense": DataSet(
        native(commonsense, ".json"),
        "github.com/AGI-Edgerunners/LLM-Adapters (dataset/openbookqa, ARC-Easy, piqa, ...)",
        "Apache 2.0; questions as their sources",
        "options",
    ),
    "mmlu": DataSet(
        native(mmlu, ".csv", PARQUET, splits=FEW_SHOT_SPLITS),
        "github.com/hendrycks/test (data.tar, as zip, tar or folder)",
        "MIT",
        "options, subject as relation; dev is train, val is dev",
        download="https://people.eecs.berkeley.edu/~hendrycks/data.tar",
    ),
    "ceval": DataSet(
        native(ceval, ".csv", PARQUET, splits=FEW_SHOT_SPLITS),
        "cevalbenchmark.com (ceval-exam.zip)",
        "CC BY-NC-SA 4.0",
        "options, subject as relation, hidden answers (test); dev is train, val is dev",
        download="https://huggingface.co/datasets/ceval/ceval-exam/resolve/main/ceval-exam.zip",
    ),
    "cmmlu": DataSet(
        native(cmmlu, ".csv", PARQUET, splits=FEW_SHOT_SPLITS),
        "github.com/haonan-li/CMMLU (cmmlu_v1_0_1.zip)",
        "CC BY-NC-SA 4.0",
        "options, subject as relation; dev is train",
        download="https://huggingface.co/datasets/haonan-li/cmmlu/resolve/main/cmmlu_v1_0_1.zip",
    ),
    "mlec_qa": DataSet(
        native(mlec_qa, *OBJECTS),
        "github.com/Judenpech/MLEC-QA (zip with Clinic_train.json, ...)",
        "see its page",
        "options, field as relation",
    ),
    "xiezhi": DataSet(
        native(xiezhi, *OBJECTS),
        "github.com/MikeGu721/XiezhiBenchmark (*_chn)",
        "CC BY-NC-SA 4.0",
        "options, field as relation",
    ),
    "xiezhi_en": DataSet(
        native(partial(xiezhi, dataset="xiezhi_en", language="en"), *OBJECTS),
        "github.com/MikeGu721/XiezhiBenchmark (*_eng)",
        "CC BY-NC-SA 4.0",
        "options, first discipline as relation",
    ),
    "webqa": DataSet(
        native(webqa, ".json"),
        "WebQA v1.0 by Baidu (me_train.json, ...), or as WebQA.json from kexue.fm/archives/4338",
        "research only, see its page",
        "answers of all passages, passages, gold passages",
    ),
    "sogouqa": DataSet(
        native(sogouqa, *OBJECTS),
        "the CIPS-SOGOU contest of 2018, or as SogouQA.json beside WebQA.json",
        "the contest's terms",
        "answers of all passages, passages, gold passages",
    ),
}


def catalogue_text() -> str:
    """The data sets as ``collect.py --list`` shows them."""
    entries = (
        f"{name}\n  from     {data_set.where}\n"
        + (f"  get      {data_set.download}\n" if data_set.download else "")
        + f"  licence  {data_set.licence}\n  keeps    {data_set.keeps}"
        for name, data_set in DATA_SETS.items()
    )
    return "\n".join(entries)


EMBEDDED_SETS = {"atlas": "questions", "atlas_known": "known_questions"}


def atlas_file(kind: Literal["questions", "passages"], name: str = "atlas") -> Path:
    """Path of the embedded file; ``name``: the data set whose questions are meant."""
    stem = EMBEDDED_SETS[name] if kind == "questions" else kind
    return Path(__file__).parent / "data" / f"atlas_{stem}.jsonl"


def atlas_passages() -> Iterator[Passage]:
    """The passages of every entity of the atlas, sorted by id."""
    yield from jsonl.read(Passage, atlas_file("passages"))
