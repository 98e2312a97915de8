# One command each: `make demo` shows it, `make test` proves it. Both install into .venv when needed.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# The environment without, and with, what the tests need. Made anew when pyproject.toml changes.
INSTALLED := $(VENV)/.installed
INSTALLED_TEST := $(VENV)/.installed-test

.PHONY: help demo test test-all sanitize lint clean

help:
	@echo "make demo      the paper's example in the terminal, then two models that learn it (some minutes)"
	@echo "make test      linters, type checker and tests (without the slow ones)"
	@echo "make test-all  the same with the slow tests and more random examples"
	@echo "make sanitize  the compiled library under AddressSanitizer and UBSan (some minutes; needs g++)"
	@echo "make lint      linters and type checker only"
	@echo "make clean     removes caches and build products; $(VENV) stays"

demo: $(INSTALLED)
	@$(BIN)/selattn demo

test: lint
	$(BIN)/python -m pytest -n 2

test-all: lint
	$(BIN)/python -m pytest -n 2 -m "slow or not slow" --hypothesis-profile=thorough

sanitize: $(INSTALLED_TEST)
	$(BIN)/python -m tests.ops.sanitize

lint: $(INSTALLED_TEST)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "selattn needs Python 3.11 or newer, and no python3 was found" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "selattn needs Python 3.11 or newer; $(PYTHON) is older or does not run: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

$(INSTALLED): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e .
	@touch $@

$(INSTALLED_TEST): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e ".[test]"
	@touch $(INSTALLED) $@
