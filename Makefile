# Everything runs from .venv, which the first target that needs it makes.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed

.DEFAULT_GOAL := help
.PHONY: help install system demo pictures test chaos lint format bench gpu-check clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Make .venv with everything that development needs

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet --editable '.[dev]' --constraint constraints.txt
	touch $@

system:
	@scripts/install_system_packages.sh

demo: $(INSTALLED) ## Train, kill the training in the middle and watch it recover
	$(BIN)/python examples/demo.py

pictures: $(INSTALLED) system ## Make the README's pictures of the dashboard, from real trainings
	$(BIN)/python scripts/pictures.py

test: lint system ## Run all checks and all tests but the long random ones
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not chaos'

chaos: $(INSTALLED) ## Kill everything at random, 300 times, and search for broken properties
	$(BIN)/python -m pytest -m chaos tests/chaos
	$(BIN)/python -m pytest -n 2 -m hypothesis --hypothesis-profile search

lint: $(INSTALLED) ## Check style, types and the layers of the packages
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED) ## Format the code, and mend what can be mended by itself
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(INSTALLED) ## Measure the figures of the README
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.queue
	$(BIN)/python -m benchmarks.dashboard
	$(BIN)/python -m benchmarks.search
	$(BIN)/python -m benchmarks.learner
	$(BIN)/python -m benchmarks.sim
	$(BIN)/python -m benchmarks.pool
	$(BIN)/python -m benchmarks.pool --real
	$(BIN)/python -m benchmarks.real
	$(BIN)/python -m benchmarks.replay

gpu-check: $(INSTALLED) ## Run the digits project on a real GPU, where there is one
	$(BIN)/python -m benchmarks.gpu_check

clean: ## Remove all that the other targets made, .venv too
	rm -rf .venv .demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis \
		.import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
