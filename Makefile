# Make targets set up .venv themselves; they need Python 3.11 or later (PYTHON) and nothing else.
# test-gpu and bench also run in an environment of your own: make test-gpu PY=python3

PYTHON ?= python3
PY ?= .venv/bin/python
INSTALLED := .venv/.installed
PEERS := .venv-peers/.installed
OF_PEERS := tests/peers tests/test_benchmarks.py tests/test_frameworks.py tests/test_torch.py $(wildcard tests/test_state_pytorch*.py)
SETUP := $(if $(filter .venv/bin/python,$(PY)),$(INSTALLED))

.PHONY: help verify test test-peers test-long test-gpu bench notebooks docs maps mutants lint clean
.PHONY: records gpu-records
.DEFAULT_GOAL := help

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

verify: $(INSTALLED)  ## compare the NumPy and CUDA forms; ARGS are passed on
	@.venv/bin/refopt verify $(ARGS)

test: lint  ## lint, then the tests that need no GPU
	.venv/bin/python -m pytest -n 2 -m "not gpu and not slow" --junitxml=build/test.xml

test-peers: $(PEERS)  ## the tests beside other code; fails if make test has skipped what this skips
	.venv-peers/bin/python -m pytest -n 2 -m "not gpu" --junitxml=build/test-peers.xml $(OF_PEERS)
	.venv-peers/bin/python tests/skipped.py build/test.xml build/test-peers.xml

test-long: $(INSTALLED)  ## the same and the slow ones, under Hypothesis's long profile
	.venv/bin/python -m pytest -n auto -m "not gpu" --hypothesis-profile=long

test-gpu: $(SETUP)  ## the tests that need a GPU; ARGS are passed on, such as -n 8 --dist loadgroup
	REFOPT_DEVICE=gpu $(PY) -m pytest -m gpu tests $(ARGS)

bench: $(SETUP)  ## the benchmarks; ARGS are passed on
	$(PY) -m benchmarks.run $(ARGS)

records: $(SETUP)  ## which records of benchmarks/results must be made again, and why
	@$(PY) -m benchmarks.records $(ARGS)

gpu-records: $(SETUP)  ## the records of a machine with GPUS GPUs; ONLY and ARGS choose
	$(PY) -m benchmarks.gpu_records --gpus $(or $(GPUS),1) $(if $(ONLY),--only $(ONLY)) $(ARGS)

notebooks: $(INSTALLED)  ## execute the notebooks again, in place
	.venv/bin/jupyter nbconvert --execute --inplace --ExecutePreprocessor.record_timing=False notebooks/*.ipynb
	.venv/bin/jupyter nbconvert --to notebook --inplace --coalesce-streams notebooks/*.ipynb

docs: $(INSTALLED)  ## the docstrings as web pages, in build/docs
	.venv/bin/pdoc --docformat google -o build/docs refopt

maps: $(INSTALLED)  ## docs/evidence.md, clauses.md and non-finite.md again, from the tests
	PYTHONPATH=tests .venv/bin/python -m maps

mutants: $(INSTALLED)  ## plant changes in the package, and see which ones the tests notice; ARGS are passed on
	PYTHONPATH=tests .venv/bin/python -m mutation $(ARGS)

lint: $(INSTALLED)  ## ruff and mypy
	.venv/bin/ruff check
	.venv/bin/mypy

clean:  ## remove what builds and tests leave behind; environments stay
	rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path './.venv*' -prune -o -name __pycache__ -type d -exec rm -rf {} +

$(PEERS): requirements/peers.txt requirements/torch.txt pyproject.toml
	@echo "Setting up .venv-peers (once)"
	@$(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip install -q --disable-pip-version-check --no-deps -r requirements/torch.txt
	@.venv-peers/bin/python -m pip install -q --disable-pip-version-check --no-deps -r requirements/peers.txt
	@.venv-peers/bin/python -m pip install -q --disable-pip-version-check --no-deps -e .
	@touch $@

$(INSTALLED): requirements/dev.txt pyproject.toml
	@echo "Setting up .venv (once)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "refopt needs Python 3.11 or later: set PYTHON")'
	@$(PYTHON) -m venv .venv
	@.venv/bin/python -m pip install -q --disable-pip-version-check -r requirements/dev.txt
	@.venv/bin/python -m pip install -q --disable-pip-version-check --no-deps -e .
	@touch $@
