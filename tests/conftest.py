"""Settings of every test process; they must stand before torch or a tokenizer is imported."""

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads only slow tiny models down
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"  # a test that needs the network is a wrong test

# The same commit gives the same verdict: the suite draws the same examples every time, `make torture` new ones.
settings.register_profile("suite", derandomize=True, database=None, deadline=None)
settings.register_profile("torture", max_examples=1000, deadline=None)
settings.load_profile("suite")
