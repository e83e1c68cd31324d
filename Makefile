# make demo   distils scikit-learn's digits and shows what the result is worth
# make test   format, lint, types, tests
# make stress kills, stops, starves and damages runs of digits, and looks whether they end the same (about 20 min)
# Both make .venv and install the pinned requirements first. PYTHON=… chooses the interpreter.

PYTHON ?= $(shell for p in python3.12 python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
RUNS ?= runs
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test stress format clean

demo: .venv/installed
	$(BIN)/teddy distill digits --ipc 10 --out $(RUNS)/digits-ipc10
	$(BIN)/teddy distill digits --ipc 1 --out $(RUNS)/digits-ipc1

test: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto

stress: .venv/installed
	$(BIN)/python tests/stress.py

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv $(RUNS) .mypy_cache .pytest_cache .ruff_cache

.venv/installed: requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 is needed; name it with make PYTHON=/path/to/python3.12"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --requirement requirements.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@
