"""Passages on disk, read by position: what an index returns is fetched from here, so memory holds none of them."""

from __future__ import annotations

import json
import mmap
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbtrain.errors import UserError, at
from kbtrain.records import Passage

if TYPE_CHECKING:
    import numpy as np

_TEXTS, _OFFSETS, _RANKS = "passages.jsonl", "passages.offsets.npy", "passages.ranks.npy"
_BLOCK = 65_536  # ids gathered before they become one array


def copy_passages(passages: Iterable[Passage], folder: Path) -> Iterator[Passage]:
    """Pass passages on, writing them into ``folder`` on the way; when the last one has passed, the files are whole.

    Besides the texts: where each begins, and the rank of its id among all ids (by code points), which orders equal
    scores. Memory: 8 bytes and the longest id's length per passage. Raises :class:`UserError`: none, or an id twice.
    """
    import numpy as np

    offsets, blocks, ids = array("q", [0]), list[Any](), list[bytes]()
    with open(folder / _TEXTS, "wb") as file:
        for passage in passages:
            row = {"id": passage.id, "title": passage.title, "text": passage.text}
            size = file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            offsets.append(offsets[-1] + size)
            ids.append(passage.id.encode())
            if len(ids) == _BLOCK:
                blocks.append(np.array(ids))
                ids.clear()
            yield passage
    if ids:
        blocks.append(np.array(ids))
    if not blocks:
        raise UserError("no passages to search: the corpus is empty")
    np.save(folder / _OFFSETS, np.frombuffer(offsets, dtype=np.int64))
    np.save(folder / _RANKS, _ranks(np.concatenate(blocks)))


def _ranks(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Place of each id in their order. UTF-8 bytes sort like code points, so this is the order of Python's strings."""
    import numpy as np

    order = np.argsort(ids, kind="stable")
    same = np.flatnonzero(ids[order[1:]] == ids[order[:-1]])
    if len(same):
        first, second = sorted(order[same[0] : same[0] + 2].tolist())
        name = ids[first].decode()
        raise UserError(f"two passages have the id '{name}': number {first + 1} and number {second + 1} of the corpus")
    ranks = np.empty(len(ids), dtype=np.int32)
    ranks[order] = np.arange(len(ids), dtype=np.int32)
    return ranks


class PassageFile:
    """The passages of a folder that :func:`copy_passages` filled, memory-mapped. ``ranks[i]``: rank of i's id."""

    def __init__(self, folder: Path) -> None:
        import numpy as np

        try:
            self._offsets = np.load(folder / _OFFSETS, mmap_mode="r")
            self.ranks = np.load(folder / _RANKS, mmap_mode="r")
            with open(folder / _TEXTS, "rb") as file:
                self._texts = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (FileNotFoundError, ValueError) as error:
            raise UserError(f"{at(folder)}: no whole index ({error}); build it again") from None

    def __len__(self) -> int:
        return len(self.ranks)

    def __getitem__(self, position: int) -> Passage:
        begin, end = self._offsets[position : position + 2].tolist()
        return Passage(**json.loads(self._texts[begin:end]))
