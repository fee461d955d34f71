"""A real (tiny) model behind HTTP: greedy answers with their top log-probabilities, in OpenAI's protocol."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kbtrain.prompts.kbm import encode
from support.http_server import LocalServer


class Served(LocalServer):
    """A model behind the two endpoints of OpenAI's protocol, greedy, with as many log-probabilities as asked for."""

    path = "/v1"

    def __init__(self, model, tokenizer):
        super().__init__()
        self.model, self.tokenizer, self.asked, self.silent = model, tokenizer, [], False

    def read(self, ids, tokens):
        """The greedy tokens, and at each the log-probability of every token."""
        made, tops = [], []
        with self.guard, torch.no_grad():
            while len(made) < tokens and made[-1:] != [self.tokenizer.eos_token_id]:
                values = self.model(torch.tensor([ids + made])).logits[0, -1].float().log_softmax(-1)
                made.append(int(values.argmax()))
                tops.append(values)
        return made, tops

    def reply(self, asked):
        if asked.method == "GET":
            return 200, {"data": [{"id": "tiny", "owned_by": "test"}]}
        body, chat = asked.body, "chat" in asked.path
        self.asked.append(body)
        ids = encode(self.tokenizer, body["messages"][0]["content"]) if chat else body["prompt"]
        _, tops = self.read(ids, body["max_tokens"])
        wanted = body.get("top_logprobs") if chat else body.get("logprobs")
        best = [zip(*(part.tolist() for part in one.topk(min(wanted, len(one)))), strict=True) for one in tops]
        places = [[(f"<{token}>", value) for value, token in one] for one in best]
        if chat:
            content = [{"token": "x", "logprob": 0.0, "top_logprobs": [{"token": t, "logprob": v} for t, v in place]}
                       for place in places]  # fmt: skip
            choice = {"message": {"content": "x"}, "logprobs": None if self.silent else {"content": content}}
        else:
            choice = {"text": "x", "logprobs": {"top_logprobs": [dict(place) for place in places]}}
        return 200, {"choices": [{"index": 0, "finish_reason": "length", **choice}]}


@contextmanager
def serving(model, tokenizer) -> Iterator[Served]:
    """The server in a thread of this process."""
    with Served(model, tokenizer) as server:
        yield server
