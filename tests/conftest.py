"""Settings of every test process; they must stand before torch or a tokenizer is imported."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads only slow tiny models down
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"  # a test that needs the network is a wrong test
