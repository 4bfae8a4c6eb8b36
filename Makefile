# Every habit of the project as one word. `make help` lists them.
#
# The first word that needs it makes .venv with plain pip, in exactly the versions of requirements.lock, and
# makes it again when the lock or pyproject.toml changes. All paths are relative, so that a clone in a folder
# with spaces in its name works.

PYTHON ?= python3
# The tests that the coverage gate counts: those of what it is about. The others would take half as long again.
COVERED := tests/core tests/engine tests/store tests/worker tests/pipelines $(wildcard tests/test_submit_in_transaction*.py)
# Most tests wait for processes and databases longer than they compute, so there are more of them than cores. Each
# has a PostgreSQL of its own: more than a few help nobody.
TEST_PROCESSES ?= 4

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest -n $(TEST_PROCESSES) --maxprocesses=8 --dist=worksteal
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
# The engines that `make bench-peers` measures, in an environment of their own.
PEERS := .bench-peers
PEERS_PIP := $(PEERS)/python/bin/python -m pip --disable-pip-version-check -qq

.DEFAULT_GOAL := help
.PHONY: help setup run serve test check lint format types bench bench-peers simulate soak lock clean

help: ## list these targets
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/\1|\2/' \
	  | while IFS='|' read -r name text; do printf '  make %-11s %s\n' "$$name" "$$text"; done

setup: $(READY) ## make .venv with all that the other targets need

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Holdfast needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing)."; \
	  echo "Name a newer one: make setup PYTHON=python3.12"; exit 1; } >&2
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module; on Debian and Ubuntu: apt install python3-venv"; exit 1; } >&2
	@$(BIN)/python -c '' 2>/dev/null || { \
	  echo "setup: making $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv --clear $(VENV); }
	@echo "setup: installing the versions in requirements.lock"
	@$(PIP) install --require-hashes -r requirements.lock
	@echo "setup: installing holdfast, editable"
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $(READY)
	@echo "setup: ready"

run: $(READY) ## run the demo
	$(BIN)/python -m holdfast demo

# PORT=8090 is another port than 8083; SERVE="--db postgresql://…" gives it any option.
serve: $(READY) ## run the HTTP API and a worker, on 127.0.0.1:8083
	$(BIN)/python -m holdfast serve $(if $(PORT),--port $(PORT)) $(SERVE)

# All our own files are traced, not only those of the gate: Python 3.11 loses exceptions that are thrown into a
# coroutine whose file a running tracer ignores (cpython issue 106749).
test: $(READY) ## run all tests on both stores, with the coverage gate
	$(PYTEST) --cov=holdfast --cov=tests --cov-report= $(COVERED)
	$(BIN)/python -m coverage report --fail-under=95 \
	  --include='src/holdfast/core/*,src/holdfast/engine/*,src/holdfast/store/*'
	$(BIN)/python -m coverage report --fail-under=90 --include='src/holdfast/pipelines/*'
	$(PYTEST) $(addprefix --ignore=,$(COVERED)) tests

check: lint types test ## all that a change must pass: lint, types, test

lint: $(READY) ## check style and format
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

format: $(READY) ## put every file in the one format
	$(BIN)/python -m ruff check --fix-only .
	$(BIN)/python -m ruff format .

types: $(READY) ## check types: of the code strictly, of the tests that all names are there
	$(BIN)/python -m mypy src bench
	$(BIN)/python -m mypy --config-file tests/mypy.ini tests

bench: $(READY) ## measure throughput and latency on this machine
	$(BIN)/holdfast bench

# PEERS_OPTIONS="--quick" makes it short; "--help" lists the rest. Without npm the peers that need Node are
# told as missing.
bench-peers: $(PEERS)/.ready ## measure Holdfast beside the engines people would use instead
	$(PEERS)/python/bin/python -m bench.peers $(PEERS_OPTIONS)

$(PEERS)/.ready: bench/peers/requirements.txt bench/peers/package.json pyproject.toml
	@echo "bench-peers: installing the versions in bench/peers/requirements.txt"
	@$(PYTHON) -m venv --clear $(PEERS)/python
	@$(PEERS_PIP) install -r bench/peers/requirements.txt
	@$(PEERS_PIP) install --no-build-isolation -e '.[bench]'
	@mkdir -p $(PEERS)/node && cp bench/peers/package.json $(PEERS)/node/
	@if command -v npm >/dev/null; then \
	  echo "bench-peers: installing the versions in bench/peers/package.json"; \
	  npm install --prefix $(PEERS)/node --no-package-lock --no-audit --no-fund --loglevel=error \
	    || echo "bench-peers: npm failed; the peers that need Node will be missing" >&2; \
	else echo "bench-peers: no npm here; the peers that need Node will be missing" >&2; fi
	@touch $@

simulate: $(READY) ## run the simulator over many seeds
	$(BIN)/python tests/simulation/run.py

soak: $(READY) ## kill workers and databases 1,000 times, and look for damage
	$(BIN)/python tests/faults/run.py $(SOAK)

# With extras: pip asks for the newest version of a package whose extra another one needs, unless the lock names both.
lock: ## renew requirements.lock (needs uv)
	uv pip compile --quiet --upgrade --no-strip-extras --universal --python-version 3.11 --extra dev --extra bench \
	  --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
	  pyproject.toml -o requirements.lock

clean: ## remove .venv and every cache
	rm -rf $(VENV) $(PEERS) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.egg-info' -type d -prune -exec rm -rf {} +
