"""A model in this process that thinks: the client gets what follows the thought, streamed or whole."""

import asyncio
import json

import pytest
import torch
from tiny_kbm import make_folder

from kbtrain.llm.sampler.draw import DrawnTokens
from kbtrain.serve.local_model import LocalModel


@pytest.fixture
def reply(tmp_path, monkeypatch):
    """Content and finish reason of the reply of a model that says ``text``, and the texts of its stream."""
    model = LocalModel(str(make_folder(tmp_path / "tiny")), "fp32")

    def replied(text):
        script = model.tokenizer(text, add_special_tokens=False)["input_ids"] + [model.tokenizer.eos_token_id]

        async def ask(stream):
            steps = iter(script)

            def drawn(self, logits, uniforms, greedy, source):
                return DrawnTokens(torch.tensor([next(steps)]), torch.tensor([-0.5]))

            monkeypatch.setattr("kbtrain.llm.sampler.sampler.BatchSampler._draw_tokens", drawn)
            body = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 200, "stream": stream}
            async with model.send("chat/completions", json.dumps(body).encode(), []) as made:
                return b"".join([part async for part in made.pieces])

        whole = json.loads(asyncio.run(ask(False)))["choices"][0]
        events = [json.loads(line[6:]) for line in asyncio.run(ask(True)).splitlines() if line.startswith(b"data: {")]
        texts = [event["choices"][0]["delta"].get("content") for event in events]
        return whole["message"]["content"], whole["finish_reason"], [text for text in texts if text]

    yield replied
    asyncio.run(model.close())


def test_a_client_gets_what_follows_the_thought(reply):
    content, finish, texts = reply("<think>\nIs it so?\n</think>\n\nYes\nit is")
    assert (content, finish, "".join(texts)) == ("Yes\nit is", "stop", "Yes\nit is")
    assert all("think" not in text and "<" not in text for text in texts) and len(texts) > 1


def test_what_looks_like_a_mark_for_a_while_is_sent_when_it_is_none(reply):
    assert reply("<them> and us")[0] == "".join(reply("<them> and us")[2]) == "<them> and us"
    assert reply("<")[0] == "<"


def test_a_thought_without_an_end_is_an_empty_content(reply):
    assert reply("<think>\nIs it so?") == ("", "stop", [])
