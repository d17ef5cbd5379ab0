# Everything a stranger needs: make run, make test. The other targets are for developers.
PYTHON ?= python3
BIN := .venv/bin
TRACE ?=
POOLS ?=
OUT ?= out
ARGS ?=

.PHONY: run replay docs test servers tools newcomer soak check lint setup lock bench clean

# A daemon with pools and jobs of its own, where an hour goes by in a second.
run: setup
ifeq ($(TRACE)$(POOLS),)
	$(BIN)/sia demo $(ARGS)
else
	$(MAKE) --no-print-directory replay
endif

# Your log, or one that is made.
replay: setup
ifeq ($(TRACE),)
	$(if $(POOLS),$(error TRACE is missing: make run TRACE=log.csv POOLS=pools.csv))
	$(BIN)/sia trace synth --preset base --seed 1 --out "$(OUT)/workload"
	$(BIN)/sia replay --trace "$(OUT)/workload/trace.csv" --pools "$(OUT)/workload/pools.csv" --out "$(OUT)" $(ARGS)
else
	$(if $(POOLS),,$(error POOLS is missing: make run TRACE=log.csv POOLS=pools.csv))
	$(BIN)/sia replay --trace "$(TRACE)" --pools "$(POOLS)" --out "$(OUT)" $(ARGS)
endif

test: setup
	$(BIN)/python -m pytest -m "not server" -n 2 --dist loadgroup $(ARGS)

# What needs a real mosquitto, PostgreSQL, Slurm or Chromium; it is skipped where that is missing, which CI does not allow.
servers: setup
	$(BIN)/python -m pytest -m server -n 2 --dist loadgroup $(ARGS)

# Linters of what is in deploy/, for `make servers`.
tools: setup
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.tools.lock

check: lint test

# Before each release: every test, those of `make servers` too, with SIA_SOAK=1, which makes what repeats run at its
# whole length (200 crashes, 50 takeovers, whole logs): hours. The last result is in benchmarks/results/soak.json.
soak: setup
	$(BIN)/python benchmarks/soak.py $(ARGS)

# The guides of docs/start/install.md and docs/operate/upgrade.md followed on a fresh Debian, as root: minutes. SIA_OLDER=commit upgrades from it.
newcomer: setup
	SIA_NEWCOMER=1 $(BIN)/python -m pytest -s tests/deploy/test_newcomer.py --timeout=3600 $(ARGS)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site in build/docs; its reference is made from the code, and a warning is an error.
docs: setup
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "open build/docs/index.html"

bench: setup
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/rivals.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/cells_speed.py

setup: .venv/ready

.venv/ready: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "sia needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' || { echo "Python has no venv: apt-get install python3-venv"; exit 2; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Needs uv. One lock file for every supported Python.
lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --all-extras \
		--no-header pyproject.toml requirements.build.in -o requirements.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--extra postgres --extra learn --extra kubernetes --no-header --constraint requirements.lock \
		pyproject.toml requirements.build.in -o deploy/requirements.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-header --constraint requirements.lock requirements.tools.in -o requirements.tools.lock

clean:
	rm -rf .venv out
