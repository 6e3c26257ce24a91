# make demo: set everything up in .venv and train an agent. make test: set everything up and pass the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint docs setup bench bench-peers clean
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
	$(BIN)/phasegrad video runs/demo
	$(BIN)/phasegrad report runs/demo
	@echo "The agent is in runs/demo, its video in runs/demo/videos, its report in runs/demo/report.html: open it in a browser."
	@echo "Next: $(BIN)/phasegrad train ppo --env CartPole-v1 --total-steps 1e5"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini

test: lint
	$(BIN)/pytest -n 2

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The site is in build/site."

bench: setup
	$(BIN)/phasegrad bench --out results/bench.json

bench-peers: setup
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 stable-baselines3==2.9.2 "gymnasium[mujoco,atari]==1.4.0" opencv-python-headless
	$(BIN)/python benchmarks/compare.py

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
