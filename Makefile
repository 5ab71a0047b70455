# `make demo` and `make test` are all a newcomer needs: each makes the environment it needs by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A user with a GPU gives another constraints file: make demo CONSTRAINTS=my-constraints.txt
CONSTRAINTS ?= constraints.txt
PYTEST_ARGS ?=
# Processes that share the tests: as many as there are cores, but no more than the memory of a laptop has room for.
TEST_PROCESSES ?= logical
export DVC_NO_ANALYTICS = 1
export DO_NOT_TRACK = 1
# Threads that spin while they wait steal the core from those that work.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test lint format bench services services-stop clean help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

demo: $(VENV)/.installed  ## train, audit, and catch a cheating trainer: the whole story
	$(BIN)/vt demo

test: $(VENV)/.installed-dev  ## all tests; starts and stops what they need
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict vt_core

format: $(VENV)/.installed-dev  ## put the code into the common style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-dev  ## measure; see bench/README.md
	$(BIN)/python -m bench

services: $(VENV)/.installed-dev  ## start S3, Prefect, workers and deployments on this machine
	$(BIN)/python -m flows.services start

services-stop:  ## end what `make services` started
	$(BIN)/python -m flows.services stop

clean:  ## remove caches; never evidence, runs or services (.vt, store) nor the environment
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	@echo "installing into $(VENV): about 2 GB, one to six minutes"
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml $(CONSTRAINTS) $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --editable '.[test,lint,s3server]'
	touch $@
