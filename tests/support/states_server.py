"""A tiny model behind vLLM's completions endpoint with kbtrain's connector: its replies, computed by plain passes.

The fields and their order of events follow vLLM 0.32 (``make test-vllm`` compares the real one): the last sampled token
has no state, and a request without ``kv_transfer_params`` gets null.
"""

from __future__ import annotations

import base64

import numpy as np
import torch

from support.served_model import Served


class StatesServer(Served):
    """``layers`` as in transformers' ``hidden_states``, None: an engine without the connector; ``noise`` on states.

    ``end_token``: of the connector's configuration. ``template``: a chat template in place of the tokenizer's.
    ``dies``: requests behind the n-th get no reply, as of a process that ends. ``says``: the text that it generates
    behind any prompt, in place of the model's.
    """

    def __init__(
        self, model, tokenizer, layers, name="tiny", noise=0.0, template=None, dies=None, says=None, end_token=None
    ):
        super().__init__(model, tokenizer)
        self.end_token, self.draws = end_token, torch.Generator().manual_seed(0)
        self.layers, self.name, self.noise, self.template, self.dies = layers, name, noise, template, dies
        self.says = None if says is None else tokenizer(says)["input_ids"] + [tokenizer.eos_token_id]

    def draft(self, ids, tokens, stop):
        """Greedy tokens, the last one perhaps a stop token."""
        if self.says is not None:
            begun = max(n for n in range(len(self.says)) if ids[len(ids) - n :] == self.says[:n])
            return self.says[begun : begun + tokens]
        drawn = []
        while len(drawn) < tokens and (not drawn or drawn[-1] not in {*stop, self.tokenizer.eos_token_id}):
            drawn.append(int(self.model(torch.tensor([ids + drawn])).logits[0, -1].argmax()))
        return drawn

    def drawn(self, ids, tokens, stop):
        """Drawn tokens; the last one is a stop token, or one more than the limit of an answer."""
        drawn = []
        while len(drawn) < tokens and (not drawn or drawn[-1] not in {*stop, self.tokenizer.eos_token_id}):
            logits = self.model(torch.tensor([ids + drawn])).logits[0, -1]
            drawn.append(int(torch.multinomial(logits.softmax(-1), 1, generator=self.draws)))
        return drawn

    def states(self, ids):
        """(tokens, layers, width): outputs of the decoder's blocks."""
        blocks, outputs = self.model.get_decoder().layers, {}
        hooks = [
            block.register_forward_hook(lambda _, given, output, i=i: outputs.update({i + 1: output}))
            for i, block in enumerate(blocks)
        ]
        self.model(torch.tensor([ids]))
        for hook in hooks:
            hook.remove()
        rows = [outputs[layer][0] if isinstance(outputs[layer], tuple) else outputs[layer] for layer in self.layers]
        found = torch.stack([row.reshape(len(ids), -1) for row in rows], 1).float().numpy()
        return found * (1 + self.noise)

    def reply(self, asked):
        if asked.method == "GET":
            return 200, {"data": [{"id": self.name, "owned_by": "vllm"}]}
        body = asked.body
        self.asked.append({"path": asked.path, **body})
        if "chat" in asked.path:
            return 200, self.chat(body)
        if self.dies is not None and len(self.asked) > self.dies:
            return None  # as of a process that ends
        ids = body["prompt"]
        if isinstance(ids, str):
            ids = self.tokenizer(ids)["input_ids"]
        return 200, self.several(ids, body) if body.get("n", 1) > 1 else self.one(ids, body)

    def chat(self, body):
        options = {"date_string": "today", "add_generation_prompt": body.get("add_generation_prompt", True),
                   "continue_final_message": body.get("continue_final_message", False),
                   **body.get("chat_template_kwargs", {})}  # fmt: skip
        made = self.tokenizer.apply_chat_template
        ids = made(body["messages"], chat_template=self.template, return_dict=False, **options)
        drawn = self.draft(ids, body["max_tokens"], ()) if self.says else self.tokenizer("Rabat")["input_ids"]
        text = self.tokenizer.decode(drawn, skip_special_tokens=True)
        before = body["messages"][-1]["content"] if body.get("echo") else ""
        message = {"role": "assistant", "content": before + text}
        reply = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        return reply | {"prompt_token_ids": ids if body.get("return_token_ids") else None}

    def one(self, ids, body):
        with self.guard, torch.no_grad():
            drawn = self.draft(ids, body["max_tokens"], body.get("stop_token_ids", ()))
            drawn = body.get("allowed_token_ids", drawn)[:1] if body["max_tokens"] == 1 else drawn
            wish = (body.get("kv_transfer_params") or {}).get("kbtrain_states")
            given = None if wish is None or self.layers is None else {"kbtrain_states": self.wished(ids, drawn, wish)}
        choice = {"index": 0, "text": self.tokenizer.decode(drawn), "finish_reason": "length"}
        choice["token_ids"] = drawn if body.get("return_token_ids") else None
        return {"choices": [choice], "kv_transfer_params": given}

    def several(self, ids, body):
        """Several drawn answers, with the states of the end token behind each."""
        choices, ends = [], []
        with self.guard, torch.no_grad():
            for index in range(body["n"]):
                drawn = self.drawn(ids, body["max_tokens"], body["stop_token_ids"])
                ended = drawn[-1] in {*body["stop_token_ids"], self.tokenizer.eos_token_id}
                choices.append({"index": index, "token_ids": drawn, "finish_reason": "stop" if ended else "length"})
                if self.layers:
                    state = self.states([*ids, *drawn[:-1], self.end_token or 0])[-1]
                    ends.append(state if len(drawn) > 1 else np.full_like(state, np.nan))
        wished = (body.get("kv_transfer_params") or {}).get("kbtrain_states")
        if wished is None or not self.layers:
            return {"choices": choices, "kv_transfer_params": None}
        given = {"layers": list(self.layers), "error": "it knows no end token"}
        if self.end_token is not None:
            coded = base64.b64encode(np.stack(ends).astype("<f4").tobytes()).decode()
            given = {"layers": list(self.layers), "width": ends[0].shape[-1], "prompt_tokens": len(ids),
                     "end_token": self.end_token, "ends": coded}  # fmt: skip
        return {"choices": choices[::-1], "kv_transfer_params": {"kbtrain_states": given}}

    def wished(self, ids, drawn, wish):
        fed = drawn[:-1][: wish["draft_tokens"]]
        states = self.states(ids + fed)
        at_prompt, behind = states[len(ids) - 1], states[len(ids) :]
        parts = {"prompt": at_prompt}
        if wish["draft_tokens"]:
            parts |= {"draft_mean": behind.mean(0) if fed else at_prompt, "draft_last": states[-1]}
        coded = {name: base64.b64encode(part.astype("<f4").tobytes()).decode() for name, part in parts.items()}
        facts = {"layers": list(self.layers), "width": states.shape[2], "prompt_tokens": len(ids)}
        return {**facts, "draft_tokens": len(fed), **coded}
