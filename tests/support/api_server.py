"""A stand-in for a server that speaks OpenAI's and Anthropic's APIs, as vLLM, llama.cpp and LiteLLM do.

Its answers have the forms that openai 3.54.0 and anthropic 2.14.0 read. It keeps responses, as vLLM does with
VLLM_ENABLE_RESPONSES_API_STORE=1. A path that it lacks is a 404 in the form of llama.cpp's.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from serve_support import until_started
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

Body = dict[str, Any]
WORDS = ("Nine", " o'clock", ".")


class ApiServer:
    """``asked``: method, path with query, headers and body of each request. ``fail``: streams end in an error.
    ``parts``: those of an upload, as they come."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.responses: dict[str, Body] = {}
        self.parts: list[bytes] = []
        self.got_part, self.upload_left = threading.Event(), threading.Event()
        self.fail = False
        self.url = ""

    def body(self, number: int = -1) -> Body:
        """A request's body as JSON."""
        return json.loads(self.asked[number][3])

    def application(self) -> Starlette:
        """Routes of the server."""
        answers = {
            ("POST", "/v1/chat/completions"): self._chat, ("POST", "/v1/responses"): self._respond,
            ("POST", "/v1/messages"): self._message, ("POST", "/v1/messages/count_tokens"): self._count,
            ("POST", "/v1/embeddings"): self._embed, ("GET", "/v1/models"): self._models,
        }  # fmt: skip

        async def answer(request: Request) -> Response:
            path = request.url.path
            if path == "/v1/files":
                return await self._upload(request)
            data = await request.body()
            shown = request.scope["raw_path"].decode() + (f"?{request.url.query}" if request.url.query else "")
            self.asked.append((request.method, shown, dict(request.headers), data))
            method = "GET" if request.method == "HEAD" else request.method
            if found := answers.get((method, path)):
                return found(json.loads(data) if data else {}, request)
            if path == "/v1/models/stub" and method == "GET":
                return JSONResponse(self._model(), headers={"access-control-allow-origin": "*"})
            if path.startswith("/v1/responses/"):
                return self._stored(method, path)
            if path == "/v1/slow":
                return StreamingResponse(self._slow(), media_type="application/octet-stream")
            missing = {"code": 404, "message": "File Not Found", "type": "not_found_error"}
            return JSONResponse({"error": missing}, 404)

        methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
        return Starlette(routes=[Route("/{path:path}", answer, methods=methods)])

    def _model(self) -> Body:
        return {"id": "stub", "object": "model", "created": 1, "owned_by": "stand-in"}

    def _models(self, body: Body, request: Request) -> Response:
        if "anthropic-version" in request.headers:
            named = {"type": "model", "id": "stub", "display_name": "Stub", "created_at": "2026-01-01T00:00:00Z"}
            return JSONResponse({"data": [named], "has_more": False, "first_id": "stub", "last_id": "stub"})
        return JSONResponse({"object": "list", "data": [self._model()]})

    def _chat(self, body: Body, request: Request) -> Response:
        shared = {"id": "chatcmpl-1", "created": 1, "model": body["model"]}
        if body.get("stream"):
            pieces = [{"role": "assistant", "content": ""}, *({"content": word} for word in WORDS)]
            chunk = {**shared, "object": "chat.completion.chunk"}
            ends = [None] * len(pieces) + ["stop"]
            choices = [
                {"index": 0, "delta": d, "finish_reason": end} for d, end in zip([*pieces, {}], ends, strict=True)
            ]
            return _events([(None, {**chunk, "choices": [one]}) for one in choices], done=True)
        message = {"role": "assistant", "content": "".join(WORDS)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse({**shared, "object": "chat.completion", "choices": [choice]})

    def _embed(self, body: Body, request: Request) -> Response:
        data = [{"object": "embedding", "index": 0, "embedding": [0.25, -1.0]}]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return JSONResponse({"object": "list", "model": body["model"], "data": data, "usage": usage})

    def _respond(self, body: Body, request: Request) -> Response:
        before = body.get("previous_response_id")
        if before is not None and before not in self.responses:
            message = f"Previous response with id '{before}' not found."
            error = {"message": message, "type": "invalid_request_error", "param": "previous_response_id",
                     "code": "previous_response_not_found"}  # fmt: skip
            return JSONResponse({"error": error}, 400)
        number = len(self.responses) + 1
        text = {"type": "output_text", "text": "".join(WORDS), "annotations": []}
        message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed"}
        made = {
            "id": f"resp_{number}", "object": "response", "created_at": 1, "status": "completed", "error": None,
            "incomplete_details": None, "instructions": body.get("instructions"), "model": body["model"],
            "output": [{**message, "content": [text]}], "parallel_tool_calls": True, "previous_response_id": before,
            "tool_choice": "auto", "tools": [], "temperature": 1.0, "top_p": 1.0, "metadata": {},
        }  # fmt: skip
        self.responses[made["id"]] = made
        if not body.get("stream"):
            return JSONResponse(made)
        begun = {**made, "status": "in_progress", "output": []}
        item = {**message, "status": "in_progress", "content": []}
        where = {"item_id": message["id"], "output_index": 0, "content_index": 0}
        events: list[tuple[str, Body]] = [
            ("response.created", {"response": begun}),
            ("response.in_progress", {"response": begun}),
            ("response.output_item.added", {"output_index": 0, "item": item}),
            ("response.content_part.added", {**where, "part": {**text, "text": ""}}),
            *(("response.output_text.delta", {**where, "delta": word, "logprobs": []}) for word in WORDS),
        ]
        if self.fail:
            error = {"code": "server_error", "message": "out of memory"}
            events.append(("response.failed", {"response": {**begun, "status": "failed", "error": error}}))
        else:
            events += [
                ("response.output_text.done", {**where, "text": text["text"], "logprobs": []}),
                ("response.content_part.done", {**where, "part": text}),
                ("response.output_item.done", {"output_index": 0, "item": made["output"][0]}),
                ("response.completed", {"response": made}),
            ]
        return _events([(kind, {"type": kind, "sequence_number": i, **e}) for i, (kind, e) in enumerate(events)])

    def _stored(self, method: str, path: str) -> Response:
        found = self.responses.get(path.removeprefix("/v1/responses/"))
        if found is None:
            return JSONResponse({"error": {"message": "not found", "type": "invalid_request_error", "code": None}}, 404)
        if method == "DELETE":
            del self.responses[found["id"]]
            return JSONResponse({"id": found["id"], "object": "response", "deleted": True})
        return JSONResponse(found)

    def _message(self, body: Body, request: Request) -> Response:
        if "max_tokens" not in body:
            error = {"type": "invalid_request_error", "message": "max_tokens: Field required"}
            return JSONResponse({"type": "error", "error": error, "request_id": "req_1"}, 400)
        made = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "stop_sequence": None,
            "stop_reason": "end_turn", "content": [{"type": "text", "text": "".join(WORDS)}],
            "usage": {"input_tokens": 1, "output_tokens": 3},
        }  # fmt: skip
        if not body.get("stream"):
            return JSONResponse(made)
        begun = {**made, "content": [], "stop_reason": None}
        deltas = [{"index": 0, "delta": {"type": "text_delta", "text": word}} for word in WORDS]
        events: list[tuple[str, Body]] = [
            ("message_start", {"message": begun}),
            ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
            ("ping", {}),
            *(("content_block_delta", one) for one in deltas),
        ]
        if self.fail:
            events.append(("error", {"error": {"type": "overloaded_error", "message": "Overloaded"}}))
        else:
            ended = {"stop_reason": "end_turn", "stop_sequence": None}
            events += [
                ("content_block_stop", {"index": 0}),
                ("message_delta", {"delta": ended, "usage": {"output_tokens": 3}}),
                ("message_stop", {}),
            ]
        return _events([(kind, {"type": kind, **event}) for kind, event in events])

    def _count(self, body: Body, request: Request) -> Response:
        return JSONResponse({"input_tokens": len(json.dumps(body["messages"]).split())})

    async def _upload(self, request: Request) -> Response:
        self.parts.clear()
        try:
            async for part in request.stream():
                if part:
                    self.parts.append(part)
                    self.got_part.set()
        except ClientDisconnect:
            self.upload_left.set()
            return Response(status_code=499)
        headers = dict(request.headers)
        self.asked.append((request.method, request.url.path, headers, b"".join(self.parts)))
        return JSONResponse({"id": "file-1", "object": "file", "bytes": sum(map(len, self.parts))})

    async def _slow(self) -> AsyncIterator[bytes]:
        yield b"first"
        await asyncio.Event().wait()


def _events(events: list[tuple[str | None, Body]], done: bool = False) -> Response:
    async def lines() -> AsyncIterator[str]:
        for name, data in events:
            yield (f"event: {name}\n" if name else "") + f"data: {json.dumps(data)}\n\n"
        if done:
            yield "data: [DONE]\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


@contextmanager
def api_server() -> Iterator[ApiServer]:
    """The server in a thread, on a free port."""
    import socket

    made = ApiServer()
    listening = socket.create_server(("127.0.0.1", 0))
    made.url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    settings = uvicorn.Config(made.application(), log_config=None, access_log=False, lifespan="off")
    settings.timeout_graceful_shutdown = 1
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=asyncio.run, args=(server.serve(sockets=[listening]),))
    thread.start()
    try:
        until_started(server)
        yield made
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
