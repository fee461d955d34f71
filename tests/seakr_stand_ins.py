"""A model whose thoughts are written down, and a shelf of documents: what SeaKR's loops are tested with."""

from kbtrain.gates.seakr.engine import Thought
from kbtrain.rag.seakr_lockstep import Reply
from kbtrain.records import Hit, Question


def thought(text, u, name="x", confident=True):
    pieces = tuple((f" {word}" if i else word, 0.9 if confident else 0.1) for i, word in enumerate(text.split(" ")))
    return Thought(name, text, u, {"seakr": u}, pieces, 20, 1, 100, 210)


class Script:
    """``say(ask) -> (text, U)``; remembers every ask."""

    def __init__(self, say):
        self.say = say
        self.asks = []
        self.calls = 0

    def think(self, asks):
        self.calls += 1
        self.asks += asks
        return [Reply(thought(*self.say(ask)), cut=2 if ask.documents else 0) for ask in asks]


class Shelf:
    """Hits by query; an unknown query finds nothing."""

    def __init__(self, **found):
        self.found = found
        self.queries = []

    def search(self, queries, k):
        self.queries += queries
        return [tuple(hit(name) for name in self.found.get(query.replace(" ", "_"), ()))[:k] for query in queries]


def hit(name):
    return Hit(name, f"Title {name}", f"Text of {name}.", 1.0)


def question(name="q", text="Who wrote it?", answers=("Ann",)):
    return Question(name, text, answers, "test", "d", grading="exact")
