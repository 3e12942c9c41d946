# `make` alone lists the targets. Everything happens in .venv, which is made on first use.
PYTHON ?= python3
BIN := .venv/bin
MINUTES ?= 10
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Tests start many processes: without its bytecode each of them would compile the whole package.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo browser test test-postgres plans lint format types tests faults soak storm storm-postgres bench bench-postgres docs modules picture pictures hooks clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | \
		while IFS="$$(printf '\t')" read -r name text; do printf '  make %-14s %s\n' "$$name" "$$text"; done

demo: .venv/installed  ## Run two workers on a sample app, live for half a minute
	$(BIN)/python examples/demo.py

test: lint types tests  ## Run all checks: lint, types, tests (what continuous integration runs)

lint: .venv/installed  ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: .venv/installed  ## Format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: .venv/installed  ## Check types
	$(BIN)/mypy

# Three at a time on two processors: tests often wait for a disk, a clock or another process. With
# PYTEST_DEBUG_TEMPROOT=/dev/shm they do not wait for a disk.
tests: .venv/installed browser  ## Run the tests
	$(BIN)/python -m pytest -q -n 3

# `make tests` runs a part of the behaviours on PostgreSQL, and all of them on SQLite.
test-postgres: .venv/installed  ## Run all behaviours on PostgreSQL (about ten minutes)
	HOLDFAST_POSTGRES=all $(BIN)/python -m pytest -q -n 3 -k postgres tests/conformance tests/postgres

plans: .venv/installed  ## Check the query plans of PostgreSQL with 1,000,000 jobs
	HOLDFAST_PLAN_ROWS=1000000 $(BIN)/python -m pytest -q tests/postgres/test_generic_plans.py

# The tests of the web page need a Chromium. Without one they are skipped, and .ci/run fails.
browser:  ## Install a Chromium for the tests of the web page, if there is none and this is root
	@command -v chromium chromium-browser google-chrome >/dev/null || if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; \
	then apt-get install -y -q chromium >/dev/null 2>&1 || { apt-get update -q && apt-get install -y -q chromium; } >/dev/null 2>&1; fi; \
	command -v chromium chromium-browser google-chrome >/dev/null || \
	echo "WARNING: no Chromium is installed, so the tests of the web page are skipped: apt-get install chromium" >&2

# Memory, sizes, open files and latency must stay flat: see tests/faults/soak.py. MINUTES is how long it lasts.
soak: .venv/installed  ## Run mixed load with kills, pruning, vacuum and backups: make soak MINUTES=60
	cd tests && ../$(BIN)/python -m faults.soak $(MINUTES) $(SEED)

# The test suite tries only a part of this. MINUTES is how long each of the two storms lasts.
storm: .venv/installed  ## Run the long crash tests: make storm MINUTES=10
	STORM_SECONDS=$$(( $(MINUTES) * 60 )) HOLDFAST_EXAMPLES=1000 \
		$(BIN)/python -m pytest -q -s -o faulthandler_timeout=0 -k "not postgres" tests/processes tests/test_state_machine.py \
		tests/sqlite/test_listing_paths.py tests/sqlite/test_disk_errors.py tests/conformance/workflows/test_dry_run.py

# The test suite runs a short form of a few seconds each. MINUTES is how long each of the four storms lasts.
storm-postgres: .venv/installed  ## Run the long crash tests of a PostgreSQL server: make storm-postgres MINUTES=2
	STORM_SECONDS=$$(( $(MINUTES) * 60 )) HOLDFAST_EXAMPLES=200 $(BIN)/python -m pytest -q -s -k postgres \
		-o faulthandler_timeout=0 tests/postgres/test_storms.py tests/postgres/test_restarts.py \
		tests/postgres/test_network.py tests/postgres/test_follower.py tests/test_state_machine.py

# The test suite runs a short form. PARTS: some of tests/faults/; SEED: replays a run. See docs/internals/faults.md.
faults: .venv/installed  ## Run the fault laboratory: make faults PARTS="power_cut corruption" SEED=1
	cd tests && ../$(BIN)/python -m faults $(PARTS) $(if $(SEED),--seed $(SEED))

# Needs 10 GB in the folder for temporary files. For a part: .venv/bin/python -m benchmarks --only trips
bench: .venv/peers  ## Run the benchmarks, also of other queues (about 20 minutes)
	$(BIN)/python -m benchmarks

# Starts a server of its own. For a part: .venv/bin/python -m benchmarks.postgres --only drains
bench-postgres: .venv/peers  ## Run the benchmarks of the PostgreSQL store, also of other queues (about 12 minutes)
	$(BIN)/python -m benchmarks.postgres

docs: .venv/docs  ## Build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html, or run: $(BIN)/mkdocs serve"

modules: .venv/installed  ## Write the module tables of docs/internals/architecture.md from the docstrings
	$(BIN)/python docs/internals/modules.py

picture: .venv/installed  ## Make docs/images/top.svg anew, from a run of MINUTES=10
	$(BIN)/python docs/images/top.py --minutes $(MINUTES)

# The pictures of docs/guides/web.md, made by the browser tests: 256 colours, so that they stay small.
pictures: .venv/installed browser  ## Make docs/images/web/*.png anew
	HOLDFAST_SCREENSHOTS=docs/images/web $(BIN)/python -m pytest -q tests/web/test_browser.py -k pictures
	git clean -fq docs/images/web  # those that the guide does not show

hooks: .venv/hooks  ## Run the checks before each git commit (optional, uses pre-commit)
	$(BIN)/pre-commit install

clean:  ## Remove .venv, caches and the site
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis site

.venv/installed: requirements-dev.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Holdfast needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(PIP) -r requirements-dev.txt
	$(PIP) --no-build-isolation --no-deps -e .
	touch $@

.venv/peers: .venv/installed requirements-peers.txt
	$(PIP) -r requirements-peers.txt
	touch $@

.venv/docs: .venv/installed requirements-docs.txt
	$(PIP) -r requirements-docs.txt
	touch $@

.venv/hooks: .venv/installed
	$(PIP) pre-commit==4.7.0
	touch $@
