# make demo: set everything up in .venv and train an agent. make test: set everything up and pass the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint setup clean
.DEFAULT_GOAL := demo

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "phasegrad needs Python 3.11 or newer: make PYTHON=python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup
	$(BIN)/phasegrad train ppg --env LunarLander-v3 --total-steps 400_000 --seed 1 --run-dir runs/demo --overwrite
	$(BIN)/phasegrad eval runs/demo --episodes 20 --deterministic
	$(BIN)/phasegrad plot runs/demo --out runs/demo/curve.png
	@echo "The agent is in runs/demo, its learning curve in runs/demo/curve.png. Next: $(BIN)/phasegrad train ppo --env CartPole-v1 --total-steps 1e5"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n 2

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
