# make demo: from nothing to a score. make test: the whole test suite. Both set up a virtual environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test check format install clean

demo: $(VENV)/installed
	$(BIN)/transformer-mt run --config demo.yaml

# Each test keeps to one thread, so two of them run side by side; the tests of one file share what they train.
test: $(VENV)/installed-dev
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/unit/test_architecture.py

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(VENV)/installed

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[moses]'
	touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/installed

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
