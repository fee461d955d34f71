"""A model server that streams made-up tokens as fast as it is told to: the upstream of benchmarks/serving.py.

python serving_stub.py PORT TOKENS PAUSE_SECONDS; each token repeats the last word of the request's last message.
"""

from __future__ import annotations

import asyncio
import json
import sys

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tokens: int, pause: float) -> None:
    """Serve one connection until its client leaves."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").lower().split("\r\n")
            length = next((int(line.split(":")[1]) for line in lines if line.startswith("content-length:")), 0)
            body = json.loads(await reader.readexactly(length)) if length else {}
            if head.startswith(b"GET"):
                text = json.dumps({"object": "list", "data": [{"id": "stub", "object": "model"}]}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                writer.write(b"content-length: %d\r\n\r\n%s" % (len(text), text))
                continue
            word = body["messages"][-1]["content"].split()[-1]
            delta = {"index": 0, "delta": {"content": f"{word} "}, "finish_reason": None}
            made = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "stub", "choices": [delta]}
            event = b"data: " + json.dumps(made).encode() + b"\n\n"
            chunk = b"%x\r\n%s\r\n" % (len(event), event)
            last = json.dumps({**made, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}).encode()
            end = b"data: " + last + b"\n\ndata: [DONE]\n\n"
            writer.write(HEAD)
            for _ in range(tokens):
                writer.write(chunk)
                await writer.drain()
                if pause:
                    await asyncio.sleep(pause)
            writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(end), end))
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def main(port: int, tokens: int, pause: float) -> None:
    """Serve for ever."""
    server = await asyncio.start_server(lambda r, w: answer(r, w, tokens, pause), "127.0.0.1", port, backlog=2000)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
