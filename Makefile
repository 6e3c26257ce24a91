# make demo: install what the package needs in .venv and train an agent. make test: add the development tools and pass the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check

.PHONY: demo test lint docs package setup check-lock bench bench-peers clean
.DEFAULT_GOAL := demo

package: $(VENV)/.package

setup: $(VENV)/.ready

$(VENV)/.package: requirements.lock requirements-envpool.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "phasegrad needs Python 3.11 or newer: make PYTHON=python3.11" >&2; exit 2; }
	@echo "Installing phasegrad and what it needs in $(VENV): 0.4 GB to download and 1.5 GB on disk, some two minutes; with CUDA, which"
	@echo "PyPI's Linux build of torch requires, several GB and minutes more."
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --no-compile -r requirements.lock
	$(INSTALL) --no-compile --no-deps -r requirements-envpool.lock
	$(INSTALL) --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.ready: $(VENV)/.package requirements-dev.lock
	@echo "Adding the extras and the tools for tests and documentation to $(VENV): 0.7 GB to download and 1.8 GB on disk, about two minutes."
	$(INSTALL) -r requirements-dev.lock
	@touch $@

demo: package
	$(BIN)/phasegrad train ppg --env LunarLander-v3 --total-steps 600_000 --seed 1 --run-dir runs/demo --overwrite
	$(BIN)/phasegrad eval runs/demo --episodes 20 --deterministic
	$(BIN)/phasegrad video runs/demo
	$(BIN)/phasegrad report runs/demo
	@echo "The agent is in runs/demo, its video in runs/demo/videos, its report in runs/demo/report.html: open it in a browser."
	@echo "Next: $(BIN)/phasegrad train ppo --env CartPole-v1 --total-steps 1e5"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini

test: lint
	$(BIN)/pytest -n 2 --disable-warnings

check-lock: setup
	$(BIN)/python tools/check_lock.py
	$(BIN)/python tools/check_lock.py requirements.lock requirements-envpool.lock --platform

docs: setup
	$(BIN)/python tools/docs_site

bench: setup
	$(BIN)/phasegrad bench --out results/bench.json

bench-peers: setup
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 stable-baselines3==2.9.2 sb3-contrib==2.9.2 "gymnasium[mujoco,atari,box2d]==1.4.0" opencv-python-headless
	$(BIN)/python benchmarks/compare.py

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
