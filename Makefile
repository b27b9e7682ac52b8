# make demo   one command: environment, install, the quickstart scenario, where its report is
# make test   everything CI checks: ruff, mypy, import-linter, docs, pytest (make coverage: which lines it reaches)
# make docs   the documentation, in site/: open site/index.html
# Both make what they need. Another Python: make test PYTHON=python3.12

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
SHELL  := /bin/bash
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test lint types layers docs unit coverage format clean

help:
	@sed -n '1,/^$$/s/^# //p' Makefile

demo: $(VENV)/.installed
	$(BIN)/servecast run scenarios/quickstart.yaml

test: lint types layers docs unit

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	$(BIN)/mypy

layers: $(VENV)/.installed-test
	$(BIN)/lint-imports

docs: $(VENV)/.installed-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

unit: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

coverage: $(VENV)/.installed-test
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --cov --cov-report=term

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.*

# The stamps keep a second run from installing again. The install is editable: changed code needs no new one.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(check-python)
	$(PIP) install --quiet --editable .
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints-test.txt | $(BIN)/python
	$(check-python)
	$(PIP) install --quiet --constraint constraints-test.txt --editable '.[dev]'
	@touch $@ $(VENV)/.installed

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "make: $(PYTHON) is not there. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: servecast needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1). Name another: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "make: $(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

define check-python
@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
  echo "make: $(VENV) holds $$($(BIN)/python -V 2>&1); servecast needs 3.11 or newer. Remove it (make clean), then name another: make PYTHON=python3.12" >&2; exit 2; }
endef
