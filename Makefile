# Every target bootstraps what it needs: a virtual environment, and uv inside it by pip.
PYTHON ?= python3
# Else each of the many processes that tests start would compile PyTorch's modules anew.
export PYTHONDONTWRITEBYTECODE :=
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all test-wheel test-oldest parity fuzz check clean

help:            ## list the targets
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 14

install: $(STAMP) ## make .venv and install the package with its development tools

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Boxwright needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --editable . --group dev
	touch $@

demo: install    ## train, evaluate and draw a detector on made-up data (a few minutes)
	$(BIN)/boxwright demo --out demo

test: install    ## the tests, without those marked slow
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" --numprocesses auto --dist worksteal

test-all: install test-wheel ## every test
	$(BIN)/python -m pytest

# An environment of its own, outside the checkout, with what a user would install.
test-wheel: install ## a stranger's first ten minutes, against the wheel in a fresh environment
	set -e; there=$$(mktemp -d); trap 'rm -rf "$$there"' EXIT; \
	$(BIN)/uv build --quiet --wheel --out-dir "$$there" .; \
	$(BIN)/uv venv --quiet --python $(BIN)/python "$$there/env"; \
	VIRTUAL_ENV="$$there/env" $(BIN)/uv pip install --quiet "$$(ls $$there/*.whl)[onnx]" pytest pandas supervision; \
	cp tests/wheel/tour.py "$$there/"; checkout=$$PWD; cd "$$there"; \
	OMP_NUM_THREADS=1 BOXWRIGHT_CHECKOUT="$$checkout" "$$there/env/bin/python" -m pytest -q -p no:cacheprovider tour.py

# Of what the package itself needs; its extras have newer friends.
OLDEST := .venv-oldest
test-oldest:     ## tests of training and the commands, with the oldest releases that pyproject.toml allows
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet uv
	VIRTUAL_ENV=$(OLDEST) $(OLDEST)/bin/uv pip install --quiet --resolution lowest-direct --editable .
	VIRTUAL_ENV=$(OLDEST) $(OLDEST)/bin/uv pip install --quiet pytest hypothesis scipy filelock httpx requests albumentations
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -m "not slow" \
	  -W "ignore:<class 'torch.autograd.function.Function'> should not be instantiated:DeprecationWarning" tests/training tests/preflight tests/cli/test_commands.py \
	  tests/cli/test_strangers.py tests/test_package.py

parity: install  ## every recording in the folder that BOXWRIGHT_GOLDEN names, or in the one shipped
	$(BIN)/python -m pytest tests/parity

fuzz: install    ## change good inputs at random, a minute for each reader, for commands and for the server (FUZZ="--seconds 3600": hours)
	$(BIN)/python -m tests.fuzz.run $(FUZZ)

# What `import boxwright` offers: there every argument is documented.
PUBLIC := $(addprefix src/boxwright/, api types builders/detector.py checkpoints/load_weights.py checkpoints/restore.py \
  config/load.py exporters/export.py models/detector.py postprocessing/masks.py training/settings.py training/train.py)
check: install   ## lint, types, layers, docstrings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pydoclint --quiet $(PUBLIC)

clean:           ## remove what the targets made
	rm -rf $(VENV) $(OLDEST) demo findings .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
