# Make targets set up .venv themselves, verify the smaller .venv-verify unless .venv is there; they need Python 3.11 or
# later (PYTHON) and nothing else. verify, test, test-gpu and bench also run in an environment of your own, such as
# make test-gpu PY=python3

PYTHON ?= python3
PY ?= .venv/bin/python
INSTALLED := .venv/.installed
PEERS := .venv-peers/.installed
NEWEST := .venv-newest/.installed
OF_PYTORCH := tests/evidence/test_torch.py tests/pytorch $(wildcard tests/state/test_state_pytorch*.py)
OF_PEERS := tests/peers tests/project/test_benchmarks.py tests/gpu/test_frameworks.py $(OF_PYTORCH)
NOTEBOOKS_OF_PEERS := notebooks/15-the-oracle.ipynb notebooks/16-in-pytorchs-step.ipynb
SETUP := $(if $(filter .venv/bin/python,$(PY)),$(INSTALLED))
FOREIGN := .venv-foreign/.installed
SITE := .venv-site/.installed
# verify takes the environment that is there, for its compiler, or one that has what it needs.
SMALL := .venv-verify/.installed
VERIFY_PY := $(if $(SETUP),$(if $(wildcard $(INSTALLED)),$(PY),.venv-verify/bin/python),$(PY))
VERIFY_SETUP := $(if $(filter .venv-verify/bin/python,$(VERIFY_PY)),$(SMALL))
# Keep compiled modules even if the environment disables them: tests start many processes that import them.
export PYTHONDONTWRITEBYTECODE =
CHECK_PYTHON = @$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "refopt needs Python 3.11 or later: set PYTHON")'
# Modules are compiled as they are imported: of an installation, most never are.
PIP_INSTALL := -m pip install -q --disable-pip-version-check --no-compile

.PHONY: help verify test test-peers test-long test-gpu bench notebooks exercises handout site maps mutants oracle lint clean
.PHONY: assemblers findings foreign numba-types ptx random-kernels records gpu-records wheels
.DEFAULT_GOAL := help

FIRST := verify|test|test-peers|lint|site|notebooks|bench|mutants
LIST = sed -n 's/^\([a-z-]*\):.*\#\# /  \1\t/p' Makefile | grep -E $(1) '^  ($(FIRST))	' | expand -t 16

help:  ## list the targets
	@echo "Targets of make:"
	@$(call LIST,)
	@echo
	@echo "Others:"
	@$(call LIST,-v)
	@echo
	@echo 'ARGS="-k adamw" adds arguments to the command of a target.'
	@echo 'PY=python3 runs verify, test, test-gpu and bench in your own environment.'

verify: $(VERIFY_SETUP)  ## compare the NumPy and CUDA forms
	@$(VERIFY_PY) -m refopt verify $(ARGS)

test: $(if $(SETUP),lint)  ## lint, then the tests that need no GPU; with PY the tests alone
	$(PY) -m pytest $(if $(SETUP),-n 2 --dist loadfile) -m "not gpu and not slow" --junitxml=build/test.xml $(ARGS)

test-peers: $(PEERS)  ## the tests beside other code; fails if both runs skip a test
	.venv-peers/bin/python -m pytest -n 2 -m "not gpu and not slow" $(ARGS) --junitxml=build/test-peers.xml $(OF_PEERS)
	.venv-peers/bin/python tests/skipped.py build/test.xml build/test-peers.xml

test-long: $(INSTALLED) $(NEWEST)  ## all tests, slow ones too; fresh examples, the newest PyTorch
	.venv/bin/python -m pytest -n auto -m "not gpu" --hypothesis-profile=long
	.venv-newest/bin/python -m pytest -n 2 -m "not gpu" --hypothesis-profile=long $(OF_PYTORCH)

ptx: $(INSTALLED)  ## compile the kernels whose PTX is tested; keep the digests
	REFOPT_PTX=write .venv/bin/python -m pytest -q tests/gpu/test_ptx.py tests/gpu/test_ptx_lars.py \
		tests/gpu/test_products.py tests/gpu/test_matmul.py

test-gpu: $(SETUP)  ## the tests that need a GPU
	REFOPT_DEVICE=gpu $(PY) -m pytest -m gpu tests $(ARGS)

random-kernels: $(SETUP)  ## what this GPU makes of 400 random kernels
	PYTHONPATH=.:tests $(PY) -m simt.random_kernels.record $(ARGS)

bench: $(SETUP)  ## the benchmarks
	$(PY) -m benchmarks.run $(ARGS)

findings: $(PEERS) $(INSTALLED)  ## the oracle on the libraries at hand; the pages of its findings
	.venv-peers/bin/python -m benchmarks.findings $(ARGS)
	.venv/bin/python -m benchmarks.pages

records: $(SETUP)  ## which records of benchmarks/results to make again, and why
	@$(PY) -m benchmarks.records $(ARGS)

gpu-records: $(SETUP)  ## the records of a machine with GPUS GPUs; ONLY chooses some
	$(PY) -m benchmarks.gpu_records --gpus $(or $(GPUS),1) $(if $(ONLY),--only $(ONLY)) $(ARGS)

notebooks: $(INSTALLED) $(PEERS)  ## execute the notebooks again, in place
	.venv/bin/jupyter nbconvert --execute --inplace --ExecutePreprocessor.record_timing=False \
		$(filter-out $(NOTEBOOKS_OF_PEERS),$(wildcard notebooks/*.ipynb))
	.venv-peers/bin/jupyter-execute --inplace $(NOTEBOOKS_OF_PEERS)
	.venv/bin/jupyter nbconvert --to notebook --inplace --coalesce-streams --ClearMetadataPreprocessor.enabled=True \
		--ClearMetadataPreprocessor.clear_notebook_metadata=False \
		--ClearMetadataPreprocessor.preserve_cell_metadata_mask="['tags', 'jupyter']" notebooks/*.ipynb

numba-types: $(INSTALLED)  ## record the types that numba-cuda infers again
	.venv/bin/python -m benchmarks.numba_types

exercises: $(INSTALLED)  ## make notebooks/exercises again from their solutions
	cd notebooks && $(CURDIR)/.venv/bin/python -m refopt_exercises write

handout:  ## build/refopt-course.zip: what learners get, without solutions
	mkdir -p build
	git archive --prefix=refopt/ -o build/refopt-course.zip HEAD . ':!notebooks/refopt_exercises/solutions' \
		':!docs/instructors.md' ':!tests'

site: $(SITE)  ## the documentation as web pages, links checked
	.venv-site/bin/sphinx-build -n -W --keep-going -q -c docs/_site -d build/doctrees . build/site
	.venv-site/bin/python docs/_site/check.py build/site

maps: $(INSTALLED)  ## generate pages of docs/ and types again
	PYTHONPATH=tests .venv/bin/python -m maps
	$(if $(wildcard $(PEERS)),PYTHONPATH=tests .venv-peers/bin/python -m maps.torch_options)

mutants: $(INSTALLED) $(PEERS)  ## plant changes in the package, and see which the tests notice
	PYTHONPATH=tests .venv/bin/python -m mutation $(ARGS) --peers .venv-peers/bin/python $(OF_PEERS)

oracle: $(INSTALLED)  ## which laws and which other projects' tests find a wrong step
	PYTHONPATH=.:tests .venv/bin/python -m oracle.mutants.kill_table $(ARGS)

wheels:  ## the wheel and the README's lines, in every Python at hand
	$(PYTHON) tests/wheels.py $(ARGS)

assemblers: $(INSTALLED)  ## inline PTX as machine code of three versions of ptxas
	PYTHONPATH=.:tests .venv/bin/python -m gpu.assemblers $(ARGS)

foreign: $(FOREIGN)  ## other people's kernels on the executor, at pinned commits
	PYTHONPATH=.:tests .venv-foreign/bin/python -m foreign $(ARGS)

lint: $(INSTALLED)  ## ruff, mypy, and which package imports which
	.venv/bin/ruff check
	.venv/bin/mypy
	.venv/bin/lint-imports

clean:  ## remove what builds and tests leave behind; environments stay
	rm -rf build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -path './.venv*' -prune -o -name __pycache__ -type d -exec rm -rf {} +

$(PEERS): requirements/peers.txt requirements/torch.txt pyproject.toml
	@echo "Setting up .venv-peers (once)"
	$(CHECK_PYTHON)
	@$(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python $(PIP_INSTALL) --no-deps -r requirements/torch.txt
	@.venv-peers/bin/python $(PIP_INSTALL) --no-deps -r requirements/peers.txt
	@.venv-peers/bin/python $(PIP_INSTALL) --no-deps -e .
	@touch $@

$(NEWEST): requirements/newest.txt pyproject.toml
	@echo "Setting up .venv-newest (once): 5 GB, with the libraries of CUDA"
	$(CHECK_PYTHON)
	@$(PYTHON) -m venv .venv-newest
	@.venv-newest/bin/python $(PIP_INSTALL) --no-deps -r requirements/newest.txt
	@.venv-newest/bin/python $(PIP_INSTALL) --no-deps -e .
	@touch $@

$(FOREIGN): requirements/dev.txt requirements/foreign.txt
	@echo "Setting up .venv-foreign (once)"
	$(CHECK_PYTHON)
	@$(PYTHON) -m venv .venv-foreign
	@.venv-foreign/bin/python $(PIP_INSTALL) --no-deps -r requirements/dev.txt -r requirements/foreign.txt
	@touch $@

$(SITE): requirements/site.txt
	@echo "Setting up .venv-site (once)"
	$(CHECK_PYTHON)
	@$(PYTHON) -m venv .venv-site
	@.venv-site/bin/python $(PIP_INSTALL) --no-deps -r requirements/site.txt
	@touch $@

$(INSTALLED): requirements/dev.txt pyproject.toml
	@echo "Setting up .venv (once)"
	$(CHECK_PYTHON)
	@$(PYTHON) -m venv .venv
	@.venv/bin/python $(PIP_INSTALL) -r requirements/dev.txt
	@.venv/bin/python $(PIP_INSTALL) --no-deps -e .
	@touch $@

$(SMALL): requirements/dev.txt
	@echo "Setting up .venv-verify (once): NumPy, greenlet, ml_dtypes"
	$(CHECK_PYTHON)
	@$(PYTHON) -m venv .venv-verify
	@.venv-verify/bin/python $(PIP_INSTALL) --only-binary :all: -c requirements/dev.txt numpy greenlet ml_dtypes
	@touch $@
