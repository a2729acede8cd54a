# trtforge: `make demo` and `make test` do all the set-up on a fresh machine.

PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3,$(if $(shell command -v $(p) 2>/dev/null),$(p))))
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# An index with CPU-only builds of torch keeps the download small where PyPI would give the CUDA build:
#   make demo PIP_EXTRA="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_EXTRA ?=
RECIPE ?= configs/smollm2-135m-fp8.yaml
PACKAGES := trtforge quantize evals builder plugins runtime triton_repo launcher benchmarks
NATIVE := CMakeLists.txt $(shell find plugins -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name '*.inc' 2>/dev/null)

.PHONY: demo test pytest browser-test setup install-library install-requirements check-system lint fast bench docs coverage clean

demo: setup
	$(BIN)/trtforge run $(RECIPE)

# Each worker has one thread of its own: threads of several workers on one core wait for each other. Bytecode is kept,
# whatever the environment says: hundreds of processes are started that import the same modules.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto

# both at once: mypy takes one core for a while, and the tests are done when the last of them is
test: setup
	@$(MAKE) --no-print-directory -j 2 lint pytest

pytest: setup
	$(PYTEST) -rfEs --durations=20 $(PYTEST_ARGS)

fast: setup
	$(PYTEST) -m "not e2e and not slow" $(PYTEST_ARGS)

# reports as a phone and a desktop show them; `make test` runs these too where there is a browser
browser-test: setup
	$(BIN)/python -m pytest -n 0 -rs tests/evals/test_report_in_browser.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# one process, so that no two write one file; PYTEST_ARGS chooses tests, of which the figure then is
coverage: setup
	rm -rf build/coverage && mkdir -p build/coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest -n 0 $(PYTEST_ARGS)
	$(BIN)/python -m coverage combine -q
	$(BIN)/python -m coverage report

bench: setup
	$(BIN)/python -m benchmarks.run_all

# every document, or part of one, that is written from the code; tests/docs holds this list to the documents' marks
docs: setup
	$(BIN)/python -m trtforge.recipe.docs docs/recipe.md
	$(BIN)/python -m trtforge.formats.docs docs/quantize.md
	$(BIN)/python scripts/op_tables.py
	$(BIN)/python -m trtforge.preflight.docs docs/preflight.md
	$(BIN)/python -m triton_repo.lint.docs docs/lint.md
	$(BIN)/python -m quantize.forensics.docs docs/audit.md
	$(BIN)/python -m triton_repo.parameters docs/triton.md
	$(BIN)/python scripts/advisories.py
	$(BIN)/python scripts/error_codes.py

setup: check-system $(VENV)/.installed

check-system:
	@if [ -z "$(PYTHON)" ]; then echo "python3.11: missing (no python3 on PATH)"; exit 3; fi
	@$(PYTHON) scripts/system_check.py

# The host library is compiled while the rest is downloaded and unpacked. constraints.txt pins all there is, so nothing has
# to be resolved: two pips take half of it each, and a third, which finds everything there, adds what the pins may lack.
# Bytecode is compiled at the end on all cores, tests of others and models that nobody asked for left out (pip does it on
# one); some files are no valid Python, and need not be.
# Without build isolation, and with the ninja that ModelOpt brings, a later build of a wheel can use what is compiled.
$(VENV)/.installed: pyproject.toml constraints.txt scripts/requirements.py $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	@echo "installing trtforge and what it needs into $(VENV) (a few minutes)"
	$(INSTALL) scikit-build-core ninja
	$(INSTALL) scikit-build-core $$($(BIN)/python -c '$(BUILD_NEEDS)')
	@$(MAKE) --no-print-directory -j 3 install-library install-half-0 install-half-1
	@$(MAKE) --no-print-directory install-requirements
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests?/|/transformers/models/' $(VENV)/lib $(PACKAGES) || true
	@touch $@

INSTALL := $(PIP) install -q --no-compile -c constraints.txt $(PIP_EXTRA)
# cmake and ninja, where the system has none that will do
BUILD_NEEDS := from scikit_build_core import build; print(*build.get_requires_for_build_editable())

install-library:
	$(INSTALL) --no-deps --no-build-isolation -e .

install-half-%:
	$(BIN)/python scripts/requirements.py --pinned $*/2 all harness dev > $(VENV)/pinned-$*.txt
	$(INSTALL) --no-deps -r $(VENV)/pinned-$*.txt

install-requirements:
	$(BIN)/python scripts/requirements.py all harness dev > $(VENV)/requirements.txt
	$(INSTALL) -r $(VENV)/requirements.txt
	@# PyTriton's own dependencies are not needed: only the server that its wheel carries is.
	$(INSTALL) --no-deps nvidia-pytriton

clean:
	rm -rf $(VENV) build .trtforge bundles
