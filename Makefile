# make run    set up once, then measure a training step on this machine's CPU
# make test   set up once, then run every test that this machine can run
# make lint   style and types
# Needs Python >= 3.11 (PYTHON=python3.12 picks one) and a network for the first set-up.

VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.PHONY: run test lint setup picture clean
.DELETE_ON_ERROR:

run: $(READY)
	$(BIN)/launch local --cpu

test: $(READY)
	$(BIN)/python -m pytest --ignore tests/docker_engine --numprocesses logical --maxprocesses 4 --dist loadfile
	$(BIN)/python -m pytest tests/docker_engine # one engine: one test at a time

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

setup: $(READY)

# The stamp comes last: an interrupted set-up is taken up again, a finished one is not repeated.
$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: no Python >= 3.11 found"; echo "hint: make PYTHON=/path/to/python3.11"; exit 4; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev]'
	@touch $@

# The README's picture, light and dark: the roofline of the example's bundles.
picture: $(READY)
	$(BIN)/analyze example -o build/example/example.html --figures build/example
	mkdir -p docs/images
	cp build/example/roofline_local-cpu.svg docs/images/roofline.svg
	cp build/example/roofline_local-cpu-dark.svg docs/images/roofline-dark.svg

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
