# Every target creates what it needs: a virtual environment, with uv installed by pip.
PYTHON ?= python3
# Otherwise each of the many processes that tests start would recompile PyTorch's modules.
export PYTHONDONTWRITEBYTECODE :=
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo lock test test-all test-newest test-oldest test-wheel parity fuzz fuzz-guided check release-check site docs notebooks clean

help:            ## list the targets
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 14

install: $(STAMP) ## create .venv and install the package with its development tools

# Named by hashes, for every platform and Python; `make lock` writes these files anew.
HASHED := uv pip install --quiet --require-hashes --no-deps --requirement
PIN_UV := -m pip install --quiet --require-hashes --no-deps --requirement release/uv.txt

$(STAMP): pyproject.toml release/uv.txt release/install.txt release/build_native.py $(wildcard native/*)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Boxwright needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIN_UV)
	VIRTUAL_ENV=$(VENV) $(BIN)/$(HASHED) release/install.txt
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable .
	# Compiles what the tests import, once: their processes would each do so, a quarter of a minute at the same time.
	-$(BIN)/python -m pytest --collect-only -qq -p no:cacheprovider > /dev/null
	touch $@

demo: install    ## detect blood cells with the shipped detector, then train one from scratch (four minutes in all)
	$(BIN)/boxwright demo --out demo
	$(BIN)/boxwright demo --train --out demo

# One more than cores: tests of silent clients and hanging workers wait, and leave theirs to others.
WORKERS = $$($(BIN)/python -c 'import os; print((os.cpu_count() or 1) + 1)')
test: install    ## run the tests that are not marked slow
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" --numprocesses $(WORKERS) --dist worksteal

test-all: install test-wheel ## run every test
	BOXWRIGHT_DRAWS=$${BOXWRIGHT_DRAWS:-300} $(BIN)/python -m pytest

# A fresh environment outside the checkout, with what a user would install.
test-wheel: install ## test a new user's first steps with the wheel in a fresh environment
	set -e; there=$$(mktemp -d); trap 'rm -rf "$$there"' EXIT; \
	$(BIN)/uv build --quiet --wheel --out-dir "$$there" .; \
	$(BIN)/uv venv --quiet --python $(BIN)/python "$$there/env"; \
	VIRTUAL_ENV="$$there/env" $(BIN)/uv pip install --quiet "$$(ls $$there/*.whl)[onnx]" pytest pandas supervision; \
	cp tests/wheel/tour.py "$$there/"; checkout=$$PWD; cd "$$there"; \
	OMP_NUM_THREADS=1 BOXWRIGHT_CHECKOUT="$$checkout" "$$there/env/bin/python" -m pytest -q -p no:cacheprovider tour.py

RELEASE := .venv-release
release-check:   ## build sdist and wheel, check all that a release consists of, tour the wheel on each Python that is here
	test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python $(PIN_UV)
	VIRTUAL_ENV=$(RELEASE) $(RELEASE)/bin/$(HASHED) release/release.txt
	$(RELEASE)/bin/python release/check.py $(if $(PYTHONS),--python $(PYTHONS))

# Only for the package's own dependencies; those of its extras need newer releases.
OLDEST := .venv-oldest
test-oldest:     ## test training and the commands with the oldest releases that pyproject.toml allows
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python $(PIN_UV)
	VIRTUAL_ENV=$(OLDEST) $(OLDEST)/bin/uv pip install --quiet --resolution lowest-direct --editable .
	VIRTUAL_ENV=$(OLDEST) $(OLDEST)/bin/uv pip install --quiet pytest hypothesis scipy filelock httpx requests albumentations
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -m "not slow" \
	  -W "ignore:<class 'torch.autograd.function.Function'> should not be instantiated:DeprecationWarning" tests/training tests/cli/test_commands.py \
	  tests/cli/test_strangers.py tests/test_package.py

# What users get: the package has no upper bounds.
NEWEST := .venv-newest
test-newest:     ## run the tests that are not marked slow with the newest releases of everything
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python $(PIN_UV)
	VIRTUAL_ENV=$(NEWEST) $(NEWEST)/bin/uv pip install --quiet --upgrade --editable . --group dev
	OMP_NUM_THREADS=1 $(NEWEST)/bin/python -m pytest -m "not slow" --numprocesses auto --dist worksteal

# Without comments on where a package comes from or who asks for it: the files are the same wherever they are written.
LOCK := uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
  --no-emit-index-url --no-emit-find-links --no-emit-package boxwright
lock: install    ## resolve the newest releases of what is installed, and write release/*.txt with their hashes
	echo uv | $(BIN)/$(LOCK) --output-file release/uv.txt -
	echo --editable . | $(BIN)/$(LOCK) --output-file release/install.txt --group dev -
	$(BIN)/$(LOCK) --output-file release/notebooks.txt --group notebooks --constraint release/install.txt
	$(BIN)/$(LOCK) --output-file release/fuzz.txt --group fuzz
	$(BIN)/$(LOCK) --output-file release/docs.txt --group docs
	$(BIN)/$(LOCK) --output-file release/release.txt --group release
	$(BIN)/$(LOCK) --output-file release/build.txt --group build --constraint release/install.txt
	$(BIN)/$(LOCK) --output-file release/image.txt --extra onnx --constraint release/install.txt pyproject.toml
	$(BIN)/$(LOCK) --output-file release/serve.txt --constraint release/install.txt docker/serve.txt

parity: install  ## compare with every recording in the folder BOXWRIGHT_GOLDEN, or with those shipped
	NVIDIA_TF32_OVERRIDE=0 $(BIN)/python -m pytest tests/parity

# TensorFlow 2.15 is the last of the API's Keras, and Python 3.11 the last that it knows.
RACE_ENV := .venv-race
race: install    ## race TensorFlow's own graphs in the folder BOXWRIGHT_TF_RACE, an hour (RACE="--modes detect --ways torch": some)
	@test -n "$$BOXWRIGHT_TF_RACE" || { echo "BOXWRIGHT_TF_RACE names no folder of TensorFlow's graphs: no race"; exit 1; }
	test -x $(RACE_ENV)/bin/python || $(BIN)/uv venv --quiet --python 3.11 $(RACE_ENV)
	VIRTUAL_ENV=$(RACE_ENV) $(BIN)/uv pip install --quiet --group race
	$(BIN)/python benchmarks/race.py --tf-python $(RACE_ENV)/bin/python $(RACE)

fuzz: install    ## fuzz each reader, the commands and the server for a minute each (FUZZ="--seconds 3600": for an hour)
	$(BIN)/python -m tests.fuzz.run $(FUZZ)

fuzz-guided: install ## fuzz readers and heads of requests by the lines that inputs reach (FUZZ="--seconds 600 coco voc")
	VIRTUAL_ENV=$(VENV) $(BIN)/$(HASHED) release/fuzz.txt
	$(BIN)/python -m tests.fuzz.guided $(FUZZ)

# Zensical and mkdocstrings, which reads the sources without importing them, in an environment of their own.
DOCS := .venv-docs
site: install    ## build the documentation's site into build/website/site: runs the demo and the notebooks, checks links and search
	VIRTUAL_ENV=$(VENV) $(BIN)/$(HASHED) release/notebooks.txt
	$(BIN)/python -m website.build build/website
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python $(PIN_UV)
	VIRTUAL_ENV=$(DOCS) $(DOCS)/bin/$(HASHED) release/docs.txt
	cd build/website && ../../$(DOCS)/bin/zensical build --strict
	$(BIN)/python -m website.links build/website/site
	$(BIN)/python -m website.search build/website/site

docs: site       ## build the site, and run every code block of the documentation
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/test_docs_blocks.py tests/test_docs_python.py tests/test_readme.py tests/test_add_a_detector.py

notebooks: install ## run the notebooks (some minutes); they stay without outputs
	VIRTUAL_ENV=$(VENV) $(BIN)/$(HASHED) release/notebooks.txt
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -p no:cacheprovider --nbmake --nbmake-timeout=1800 notebooks

# The public interface, `import boxwright`, where every argument is documented.
PUBLIC := $(addprefix src/boxwright/, api types data/sample_data.py pipeline/detector.py pipeline/load.py weights/load_weights.py weights/restore.py \
  exporters/export.py nn/detector.py nn/postprocessing/masks.py training/settings.py training/train.py)
check: install   ## check lint, types, layers, docstrings and the figures of the documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pydoclint --quiet $(PUBLIC)
	$(BIN)/python benchmarks/figures.py --check

clean:           ## remove everything that the targets created
	rm -rf $(VENV) $(OLDEST) $(NEWEST) $(RELEASE) $(DOCS) $(RACE_ENV) dist build demo findings .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
