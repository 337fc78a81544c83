# Clarion. `make demo` and `make test` do all their set-up themselves.

SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SITE := .cache/site/venv
MKDOCS := mkdocs==1.6.1 mkdocs-material==9.6.14 pymdown-extensions==10.15
SECONDS ?=
SEEDS ?= 2000
PYTEST := $(BIN)/pytest
# One more than there are cores, up to a point: tests wait for other processes half of their time.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 7 ? n + 1 : 8)))
CORE := -n $(WORKERS) --dist loadfile
# The simulation's rules switched off are half of the uncompiled tests, in one file: shared out test by test.
UNCOMPILED := -n $(WORKERS) --dist worksteal
# A test that holds the interpreter's lock for ever cannot be interrupted by its time limit: it ends with the process.
HANGS = -o faulthandler_exit_on_timeout=true -o faulthandler_timeout
# Tests run on the compiled hot path where there is a C compiler. What switches its rules off, the simulation above all, is
# marked `uncompiled`: compiled code would not notice. `make sim` switches nothing off.
COMPILED = $$($(BIN)/clarion --version | grep -q '(compiled)' && echo 1 || echo 0)

.PHONY: help setup site release pictures demo test check lint types rooms unit compile bench bench-quick campaign sim test-pipeline docs lock clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(READY) ## Make .venv with everything pinned by requirements.lock

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "Clarion needs Python 3.11 or newer as '$(PYTHON)': apt-get install python3 (or make PYTHON=python3.12 …)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "Python's venv module is missing: apt-get install python3-venv"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing the locked dependencies into $(VENV) …"
	@$(BIN)/python -W ignore -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q src
	@touch $(READY)

demo: setup ## Start a broker, publish a live stream, watch several readers follow it (SECONDS=20 ends by itself)
	@$(BIN)/clarion demo $(if $(SECONDS),--seconds $(SECONDS))

cluster: setup ## Run three brokers of one cluster on this machine, over a real etcd where there is one; Ctrl-C ends all
	@$(BIN)/python -m tools.cluster

test: setup check unit test-pipeline ## Everything CI runs: checks and tests (about a quarter of an hour)

check: setup lint types rooms ## Linters, types, and the rule that rooms import downwards only

lint: setup
	@$(BIN)/ruff check --quiet src tests bench tools setup.py
	@$(BIN)/ruff format --quiet --check src tests bench tools setup.py

types: setup
	@$(BIN)/mypy --no-error-summary

rooms: setup
	@$(BIN)/lint-imports --no-cache 2>&1 | tail -n 4

unit: compile
	@CLARION_COMPILED=0 $(PYTEST) -m "uncompiled and not campaign and not spark" $(UNCOMPILED) $(HANGS)=900
	@CLARION_COMPILED=$(COMPILED) $(PYTEST) -m "not uncompiled and not campaign and not spark" $(CORE) $(HANGS)=900

test-pipeline: compile ## The pipeline on a real Spark, one test at a time: it takes both cores by itself
	@CLARION_COMPILED=$(COMPILED) $(PYTEST) -m "spark and not campaign" tests/pipeline

compile: setup ## Compile the hot path with mypyc; `clarion` uses it as long as the sources stay as they are
	@$(BIN)/python -m tools.compile

bench: compile ## Side by side with Apache Kafka and NATS JetStream (about 15 minutes)
	@$(BIN)/python -m bench $(ARGS)

bench-quick: compile ## The same in a few minutes, rougher
	@$(BIN)/python -m bench --quick $(ARGS)

campaign: compile ## Long fault campaigns: 200 kill -9 under load, crash points, fuzzing; the core's tests uncompiled (hours)
	@CLARION_FRESH_EXAMPLES=1 CLARION_COMPILED=$(COMPILED) $(PYTEST) -m "campaign and not uncompiled" -x --timeout 3600 $(HANGS)=3900 $(ARGS)
	@CLARION_FRESH_EXAMPLES=1 CLARION_COMPILED=0 $(PYTEST) -m "campaign and uncompiled" -x --timeout 3600 $(HANGS)=3900 $(ARGS)
	@CLARION_FRESH_EXAMPLES=1 CLARION_COMPILED=0 $(PYTEST) -m "not uncompiled and not campaign and not spark" $(CORE)

sim: compile ## Simulated lives of a broker under faults (SEEDS=2000; ARGS=--cluster: of clusters); may be stopped, goes on where it was
	@CLARION_COMPILED=$(COMPILED) $(BIN)/python -m tests.sim.campaign $(SEEDS) $(ARGS)

docs: setup ## Write what is generated: parts of the documentation, and the tables of the protocol
	@$(BIN)/python -m tools.wire_tables
	@$(BIN)/python -m tools.file_map
	@$(BIN)/python -m tools.protocol_table
	@$(BIN)/python -m tools.metrics_table
	@$(BIN)/python -m clarion.cli.reference

pictures: setup ## Draw the pictures of commands in docs/images from what the commands really print
	@$(BIN)/python -m tools.pictures

# Its own environment: nobody else needs MkDocs.
site: setup ## The documentation as a site with search, in build/site; fails where a link or an anchor leads nowhere
	@test -x $(SITE)/bin/mkdocs || { $(PYTHON) -m venv $(SITE) \
	  && $(SITE)/bin/python -m pip install --quiet --disable-pip-version-check $(MKDOCS); }
	@$(BIN)/python -m tools.site .cache/site/pages
	@$(SITE)/bin/mkdocs --quiet build --strict && echo "open build/site/index.html"

release: setup ## The source distribution and both wheels into dist, each tried in an environment of its own (minutes)
	@$(BIN)/python -m tools.release

lock: setup ## Pin the newest versions that fit pyproject.toml
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile --quiet --all-extras --generate-hashes --no-header --no-emit-index-url \
	  --python-version 3.11 -o requirements.lock pyproject.toml

clean: ## Remove everything that was generated
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist src/*.egg-info
