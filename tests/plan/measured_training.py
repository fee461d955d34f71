"""Memory of a real training: bytes by method that AdamW in fp32 takes for a Llama of the shape on the command line.

Every larger tensor is given back when it is freed: what a heap keeps beside depends on the order of its holes.
"""

import ctypes
import gc
import json
import sys

import bitsandbytes  # noqa: F401 - adapters import it
import peft  # noqa: F401 - and this
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from kbtrain.kernels.fp32_output_layer import fp32_output_layer
from kbtrain.kernels.lean_training import lean_layers
from kbtrain.models.adapters import Adapter

M_MMAP_THRESHOLD = -3
libc = ctypes.CDLL(None)
libc.mallopt(M_MMAP_THRESHOLD, 65536)
torch.set_num_threads(1)


def resident(name: str) -> int:
    """Bytes of this process by the kernel: VmRSS now, VmHWM at most."""
    with open("/proc/self/status") as status:
        return int(status.read().split(f"{name}:")[1].split()[0]) * 1024


def train(config: LlamaConfig, method: str) -> None:
    model = AutoModelForCausalLM.from_config(config)
    if method == "lora":
        model = Adapter(16, 64, 0.1, 0)(model.requires_grad_(False))
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    for rows in (1, 8):  # a first step, however small, makes the optimizer's states: the second takes most
        ids = torch.zeros(rows, 256, dtype=torch.long)
        mask = torch.ones_like(ids)
        with fp32_output_layer(model), lean_layers(model):
            logits = model(input_ids=ids, attention_mask=mask, logits_to_keep=32, use_cache=False).logits
        (logits.logsumexp(-1) - logits[..., 0]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def peak(config: LlamaConfig, method: str) -> int:
    libc.malloc_trim(0)  # free pages that the imports left are no room for the training
    with open("/proc/self/clear_refs", "w") as begin:
        begin.write("5")  # the peak begins again at what is resident now
    before = resident("VmRSS")
    train(config, method)
    gc.collect()
    return resident("VmHWM") - before


if __name__ == "__main__":
    warm = torch.nn.Linear(8, 8)
    warm(torch.ones(2, 8)).sum().backward()
    torch.optim.AdamW(warm.parameters()).step()
    shape = LlamaConfig(**json.loads(sys.argv[1]))
    json.dump({method: peak(shape, method) for method in ("lora", "full")}, sys.stdout)
