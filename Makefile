# Needs Python 3.11 or newer, make and a C library; everything else is installed, locked, into .venv.

VENV := .venv
NEWEST := .venv-newest
PYTHON := $(VENV)/bin/python
LOCK := requirements/lock.txt
PROJECT := pyproject.toml $(LOCK)
RUN := run.h5
# Two processes; a file stays in one, so that its fixtures are made once.
PYTEST_FLAGS ?= -n 2 --dist loadfile

# The build backend is installed from the lock first, so that nothing is fetched unlocked for the build.
INSTALL = -m pip install --quiet --disable-pip-version-check --constraint $(LOCK)
BACKEND = hatchling editables
# Files that an install leaves: it is not done again until pyproject.toml or the lock is newer.
DEMO_READY := $(VENV)/.demo-ready
TEST_READY := $(VENV)/.test-ready
NEWEST_READY := $(NEWEST)/.test-ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-newest lint format bench lock clean
.DELETE_ON_ERROR:
.NOTPARALLEL:

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name text; do \
		printf '  make %-12s %s\n' "$$name" "$$text"; done

demo: $(DEMO_READY) ## train a small transformer, record it to run.h5, look at the recording
	$(PYTHON) examples/digits.py --out $(RUN)
	$(VENV)/bin/tracerec inspect $(RUN)
	$(PYTHON) examples/readback.py $(RUN)

test: lint ## lint, types and the whole test suite
	$(PYTHON) -m pytest $(PYTEST_FLAGS)

test-newest: ## the test suite on the newest JAX, in a Python of at least 3.12 if there is one
	@if [ -x $(NEWEST)/bin/python ] || sh tools/find_python.sh 12 >/dev/null; then \
		$(MAKE) --no-print-directory .newest; \
	else \
		echo "make test-newest: SKIPPED, this machine has no Python 3.12 or newer"; \
	fi

.PHONY: .newest
.newest: $(NEWEST_READY)
	$(NEWEST)/bin/python -m pytest $(PYTEST_FLAGS)

lint: $(TEST_READY) ## ruff and pyright
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/pyright

format: $(TEST_READY) ## rewrite the sources in ruff's format
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

bench: $(TEST_READY) ## run the benchmarks; results go to bench-out/
	$(PYTHON) -m tools.bench

lock: ## write requirements/lock.txt anew: the newest versions that pyproject.toml allows
	sh tools/lock.sh $(LOCK)

clean: ## remove the environments and what runs have written
	rm -rf $(VENV) $(NEWEST) bench-out build dist $(RUN) $(RUN).live .pytest_cache .ruff_cache

$(PYTHON):
	@python=$$(sh tools/find_python.sh 11) || { \
		echo "tracerec needs Python 3.11 to 3.14 with its venv module; none was found on PATH or in pyenv" >&2; \
		exit 1; }; \
	echo "Making $(VENV) with $$python"; \
	"$$python" -m venv $(VENV)

$(NEWEST)/bin/python:
	@python=$$(sh tools/find_python.sh 12) && \
	echo "Making $(NEWEST) with $$python" && \
	"$$python" -m venv $(NEWEST)

$(DEMO_READY): $(PROJECT) | $(PYTHON)
	@echo "Installing tracerec and the example's libraries into $(VENV)"
	@$(PYTHON) $(INSTALL) $(BACKEND)
	@$(PYTHON) $(INSTALL) --no-build-isolation --editable '.[examples]'
	@touch $@

$(TEST_READY): $(PROJECT) | $(PYTHON)
	@echo "Installing tracerec and its development tools into $(VENV)"
	@$(PYTHON) $(INSTALL) $(BACKEND)
	@$(PYTHON) $(INSTALL) --no-build-isolation --editable '.[dev]'
	@touch $@ $(DEMO_READY)

$(NEWEST_READY): $(PROJECT) | $(NEWEST)/bin/python
	@echo "Installing tracerec and its test libraries into $(NEWEST)"
	@$(NEWEST)/bin/python $(INSTALL) $(BACKEND)
	@$(NEWEST)/bin/python $(INSTALL) --no-build-isolation --editable '.[test]'
	@touch $@
