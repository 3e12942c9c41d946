# Two commands for a newcomer: `make demo` and `make test`. Everything happens in .venv, made on first use.
PYTHON ?= python3
BIN := .venv/bin
MINUTES ?= 10

# Tests start many processes: without its bytecode each of them would compile the whole package.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test lint types tests storm bench clean

demo: .venv/installed
	$(BIN)/python examples/demo.py

test: lint types tests

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

# Three at a time, for two processors: they often wait, for a disk, a clock or another process.
tests: .venv/installed
	$(BIN)/python -m pytest -q -n 3

# What the test suite tries only a part of: make storm MINUTES=10, which is how long each of its two storms lasts
storm: .venv/installed
	STORM_SECONDS=$$(( $(MINUTES) * 60 )) HOLDFAST_EXAMPLES=1000 \
		$(BIN)/python -m pytest -q -s tests/processes tests/test_state_machine.py

# About 20 minutes, and 10 GB in the folder for temporary files. A part: .venv/bin/python -m benchmarks --only trips
bench: .venv/peers
	$(BIN)/python -m benchmarks

.venv/installed: requirements-dev.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Holdfast needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	touch $@

.venv/peers: .venv/installed requirements-peers.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-peers.txt
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
