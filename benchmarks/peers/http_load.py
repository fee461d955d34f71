"""Streams asked for at a rate or by so many clients at once, over connections that are kept."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

LIMIT = 2**20
WORD = re.compile(rb'"content": ?"(u\d+) ')


@dataclass
class Load:
    """By request's number, seconds until the first byte of its answer and until its last; errors; answers with another
    request's words."""

    first: dict[int, float] = field(default_factory=dict)
    whole: dict[int, float] = field(default_factory=dict)
    errors: int = 0
    mixed: int = 0
    seconds: float = 0.0

    def quantile(self, share: float) -> float:
        """Milliseconds until the first byte below which this share of the answers lies."""
        return quantile(list(self.first.values()), share)


def quantile(seconds: list[float], share: float) -> float:
    """Milliseconds below which this share of the times lies; nan for none."""
    ordered = sorted(seconds)
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def added(through: dict[int, float], straight: dict[int, float], share: float) -> float:
    """The same of the differences between the two answers of each pair."""
    return quantile([through[number] - straight[number] for number in through.keys() & straight.keys()], share)


class Clients:
    """Connections to one address, reused."""

    def __init__(self, port: int, path: str, headers: Mapping[str, str], model: str, stream: bool = True) -> None:
        self.port, self.path, self.model, self.stream = port, path, model, stream
        self.headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, number: int, question: str, load: Load) -> None:
        """One request; its answer's words must be its own number."""
        body = {"model": self.model, "messages": [{"role": "user", "content": f"{question} u{number}"}]}
        data = json.dumps({**body, "stream": True} if self.stream else {"questions": [question]}).encode()
        head = f"POST {self.path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{self.headers}content-type: application/json\r\n"
        began = time.perf_counter()
        try:
            pair = self.free.pop() if self.free else await asyncio.open_connection("127.0.0.1", self.port, limit=LIMIT)
            reader, writer = pair
            writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
            answer = await reader.readuntil(b"\r\n\r\n")
            text, first = await self._body(reader, answer.lower(), began)
        except (OSError, asyncio.IncompleteReadError, ValueError):
            load.errors += 1
            return
        if b" 200 " not in answer[:15]:
            load.errors += 1
        else:
            load.first[number], load.whole[number] = first, time.perf_counter() - began
            load.mixed += self.stream and set(WORD.findall(text)) != {b"u%d" % number}
        self.free.append(pair)

    async def _body(self, reader: asyncio.StreamReader, head: bytes, began: float) -> tuple[bytes, float]:
        if b"content-length:" in head:
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            return await reader.readexactly(length), time.perf_counter() - began
        text, first = b"", 0.0
        while size := int(await reader.readline(), 16):
            text += (await reader.readexactly(size + 2))[:-2]
            first = first or time.perf_counter() - began
        await reader.readexactly(2)
        return text, first

    def close(self) -> None:
        """Close all connections."""
        for _, writer in self.free:
            writer.close()
        self.free.clear()


async def at_rate(clients: Clients, questions: list[str], rate: float, seconds: float) -> Load:
    """Requests at even distances, whatever becomes of them."""
    (load,) = await in_turn([clients], questions, rate, seconds)
    return load


async def in_turn(several: list[Clients], questions: list[str], rate: float, seconds: float) -> list[Load]:
    """The same requests to each address, at that rate to each, one address after the other: what the machine does
    meanwhile meets all alike."""
    loads, tasks, began = [Load() for _ in several], [], time.perf_counter()
    for turn in range(int(rate * seconds) * len(several)):
        await asyncio.sleep(max(0.0, began + turn / rate / len(several) - time.perf_counter()))
        number, which = divmod(turn, len(several))
        asked = several[which].ask(number, questions[number % len(questions)], loads[which])
        tasks.append(asyncio.create_task(asked))
    await asyncio.gather(*tasks)
    for clients, load in zip(several, loads, strict=True):
        load.seconds = time.perf_counter() - began
        clients.close()
    return loads


async def at_once(clients: Clients, questions: list[str], n: int, seconds: float) -> Load:
    """``n`` clients, each with one request after the other."""
    load, began, numbers = Load(), time.perf_counter(), iter(range(10**9))

    async def client() -> None:
        while time.perf_counter() - began < seconds:
            number = next(numbers)
            await clients.ask(number, questions[number % len(questions)], load)

    await asyncio.gather(*(client() for _ in range(n)))
    load.seconds = time.perf_counter() - began
    clients.close()
    return load


async def in_all(clients: Clients, questions: list[str], n: int, total: int) -> Load:
    """``total`` requests by ``n`` clients, each with one after the other."""
    load, began, numbers = Load(), time.perf_counter(), iter(range(total))

    async def client() -> None:
        for number in numbers:
            await clients.ask(number, questions[number % len(questions)], load)

    await asyncio.gather(*(client() for _ in range(n)))
    load.seconds = time.perf_counter() - began
    clients.close()
    return load
