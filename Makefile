# To try SIA and test it: make run, make test. The other targets are for developers.
PYTHON ?= python3
BIN := .venv/bin
TRACE ?=
POOLS ?=
OUT ?= out
# What `make replay` compares: forecasts that can be made today, then perfect ones.
POLICY ?= fcfs,sia@peaks+survival,sia@peaks:0.9+survival:0.85,sia@peaks+survival+guard,mmfs,sia
ARGS ?=

# Let Python and pytest keep what they compile: each of several test processes compiles all tests otherwise.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run replay docs test servers tools newcomer soak check lint setup lock bench clean

# The demo: a daemon with the simulated jobs of a made-up company, one hour per second, without end.
run: setup
ifeq ($(TRACE)$(POOLS),)
	$(BIN)/sia demo $(ARGS)
else
	$(MAKE) --no-print-directory replay
endif

# Replay a log: TRACE and POOLS, or a generated one of three weeks, of which the first teaches the forecasts.
replay: setup
ifeq ($(TRACE),)
	$(if $(POOLS),$(error TRACE is missing: make replay TRACE=log.csv POOLS=pools.csv))
	$(BIN)/sia trace synth --preset cloud --seed 1 --days 21 --pools 6 --out "$(OUT)/workload"
	$(BIN)/sia replay --trace "$(OUT)/workload/trace.csv" --pools "$(OUT)/workload/pools.csv" --warmup 7d \
	    --policy "$(POLICY)" --out "$(OUT)" $(ARGS)
else
	$(if $(POOLS),,$(error POOLS is missing: make replay TRACE=log.csv POOLS=pools.csv))
	$(BIN)/sia replay --trace "$(TRACE)" --pools "$(POOLS)" --policy "$(POLICY)" --out "$(OUT)" $(ARGS)
endif

test: setup
	$(BIN)/python -m pytest -m "not server" -n 3 --dist loadgroup $(ARGS)

# Tests with a real mosquitto, PostgreSQL, Slurm or Chromium. A missing server skips its tests, except in CI, where they fail.
servers: setup
	$(BIN)/python -m pytest -m server -n 3 --dist loadgroup $(ARGS)

# Install the linters for deploy/, which `make servers` uses.
tools: setup
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.tools.lock

check: lint test

# Run before each release; takes hours. Runs all tests, server tests included, with SIA_SOAK=1: repeated tests run at
# full length (200 crashes, 50 takeovers, whole logs). ARGS=tests/cells runs a part. benchmarks/results/soak.json has the last results.
soak: setup
	$(BIN)/python -m benchmarks.soak $(ARGS)

# Follow docs/start/install.md and docs/operate/upgrade.md on a fresh Debian. Needs root; takes minutes.
# SIA_OLDER=COMMIT upgrades from that commit.
newcomer: setup
	SIA_NEWCOMER=1 $(BIN)/python -m pytest -s tests/deploy/test_newcomer.py --timeout=3600 $(ARGS)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Build the site in build/docs. The reference is generated from the code; a warning is an error. The picture of the
# README is taken again if the demo has changed; this needs Chromium.
docs: setup
	$(BIN)/python docs/overview.py
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "open build/docs/index.html"

bench: setup
	$(BIN)/python -m benchmarks.replays.speed
	$(BIN)/python -m benchmarks.replays.rivals
	$(BIN)/python -m benchmarks.replays.growth
	$(BIN)/python -m benchmarks.replays.cells_speed

setup: .venv/ready

.venv/ready: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "sia needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' || { echo "the Python module venv is missing; run: apt-get install python3-venv"; exit 2; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Update the lock files, which are valid for every supported Python. Needs uv.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--extra broker --extra kubernetes --extra parquet --extra postgres --extra learn --extra dev \
		--no-header pyproject.toml requirements.build.in -o requirements.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--extra postgres --extra learn --extra kubernetes --no-header --constraint requirements.lock \
		pyproject.toml requirements.build.in -o deploy/requirements.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-header --constraint requirements.lock requirements.tools.in -o requirements.tools.lock

clean:
	rm -rf .venv out
