# make train   creates .venv, installs, and trains APPO on CartPole-v1
# make test    creates .venv, installs, and runs the test suite: two files at a time, then the
#              serial tests; the last lines say which files took more than tests/budget.py gives
# make test-full  also runs slow tests and every combination of algorithm, space, core and mask
# make lint    style and types
# make house   lines of the engine, the studies and the game
PYTHON ?= python3
BIN := .venv/bin

.PHONY: train test test-full lint house clean

train: .venv/installed
	$(BIN)/headrace train appo --recipe cartpole

test: .venv/installed
	$(BIN)/python -m tests.run

test-full: .venv/installed
	$(BIN)/python -m tests.run --full

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

house: .venv/installed
	$(BIN)/python tests/house.py

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check --constraint constraints.txt \
		setuptools "torch==2.13.0"
	$(BIN)/pip install --disable-pip-version-check --constraint constraints.txt \
		--no-build-isolation --editable ".[box2d,envpool,dev]"
	touch $@

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache
