# make demo: set up and run the main job. make test: set up and run lint, types and the default tests.
# make docs: build the documentation into site/. All create .venv on the first call; PYTHON=... names another interpreter (3.11 or newer).
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready

.PHONY: demo test lint types unit slow docs index clean

demo: $(INSTALLED)
	$(BIN)/inferplan estimate --model 7b --gpu h100 --dtype fp8

test: lint types unit

lint: $(READY)
	$(BIN)/ruff check src tests tools examples benchmarks validation

types: $(READY)
	$(BIN)/mypy

unit: $(READY)
	$(BIN)/pytest -n 2 -m "not slow"

slow: $(READY)
	$(BIN)/pytest -n 2 -m slow

docs: $(INSTALLED)
	$(BIN)/python -c "import mkdocs, material, mkdocstrings_handlers.python" 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	$(BIN)/python tools/docs_site.py site

index: $(READY)
	$(BIN)/python -c "from inferplan.specs.catalog import write_index; write_index('hardware'); write_index('models')"

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build

$(INSTALLED): pyproject.toml
	@test -n "$(PYTHON)" || { echo "inferplan needs Python 3.11 or newer; set PYTHON=..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $(INSTALLED)

$(READY): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $(READY)
