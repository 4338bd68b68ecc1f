PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint

$(VENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -e . pytest hypothesis pytest-cov ruff mypy import-linter dp-accounting
	touch $@

demo: $(VENV)/ready
	$(BIN)/fclub policies

test: $(VENV)/ready
	$(BIN)/pytest

lint: $(VENV)/ready
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports
