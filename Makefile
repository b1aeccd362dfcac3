# make run          set up once, then measure a training step on this machine's CPU
# make test         set up once, then run the everyday tests: three minutes on two cores
# make test-ci      every test but the campaigns: slow ones too, and those that need servers, a browser or Docker
# make test-night   the campaigns, which take hours: make test-night PARTS="kills pages" runs two of them
# make lint         style and types
# make docs         the site of docs/, in build/site; needs no network after the set-up
# Needs Python >= 3.11 (PYTHON=python3.12 picks one) and a network for the first set-up.

VENV := .venv
READY := $(VENV)/.ready
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Markers are explained in pyproject.toml. A test without one runs everywhere and takes less than a second.
EVERYDAY := not (slow or server or browser or docker or gpu or night)
CI := not (docker or gpu or night)
# Two processes spread over two cores what is left; files stay whole, because their tests share fixtures.
# In the order of tests/conftest.py, which is by what takes long and not by how many tests a file has.
PYTEST := $(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# Without compiled files every process compiles the tests and our packages anew: 40 s of each run.
export PYTHONDONTWRITEBYTECODE =

.PHONY: run test test-ci test-night lint docs setup picture recording clean
.DELETE_ON_ERROR:

run: $(READY)
	$(BIN)/launch local --cpu

test: $(READY)
	$(PYTEST) -m '$(EVERYDAY)'
	@echo "left out: slow tests and those that need a server, a browser or Docker (make test-ci); campaigns (make test-night)"

test-ci: $(READY)
	$(PYTEST) -m '$(CI)'
	$(BIN)/python -m pytest -m 'docker and not night' tests/docker_engine # one engine: one test at a time

test-night: $(READY)
	$(BIN)/python tests/night.py $(PARTS)

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin

docs: $(READY)
	$(BIN)/python -m docs.build_site

setup: $(READY)
	@echo
	@echo "ready: $(BIN)/launch and $(BIN)/analyze; measure a first script with: $(BIN)/launch local --cpu -- examples/shapes.py"
	@echo "read on: README.md, docs/start.md; for a script of your own: docs/script.md"

# The stamp comes last: an interrupted set-up is taken up again, a finished one is not repeated.
$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: no Python >= 3.11 found"; echo "hint: make PYTHON=/path/to/python3.11"; exit 4; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev]'
	@touch $@

# The picture of README and docs/analysing.md, light and dark.
picture: $(READY)
	$(BIN)/python docs/five_steps.py

# The README's terminal recording, and the results below its first command: on an idle machine.
recording: $(READY)
	$(BIN)/python docs/recording.py

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
