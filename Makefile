# Every target does its own set-up, once, in .venv. Start with: make demo
PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
JOBS ?= 2
MINUTES ?= 20
# A process for each core, and a thread for each process: threads of several processes would wait for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal
# Tests of the packages that guarantees rest on. Only these run under coverage, which makes tests half as slow again.
CRITICAL := tests/privacy tests/grads tests/mechanisms tests/native tests/training tests/distributed/test_processes.py tests/test_plan.py tests/test_loader.py

.PHONY: setup demo test wheel mutants check fix docs reproduce bench bench-quick bench-peers bench-run bench-processes opacus-norms opacus-tests tutorial-million torture fuzz long-haul noise-battery clean

setup: .venv/ready
demo: .venv/ready
	$(BIN)/dpvd train digits --epsilon 1 --delta 1e-5
test: .venv/ready check
	$(PYTEST) $(CRITICAL) --cov --cov-report=json:.coverage.json
	$(BIN)/python tools/coverage_floor.py .coverage.json
	$(PYTEST) $(CRITICAL:%=--ignore=%)
# The sdist and the wheel as for a release, installed where nothing else of dpvd is, and run there.
wheel: .venv/ready
	$(BIN)/python tools/check_wheel.py
# Slow, and not part of make test: small changes to the code that guarantees rest on, and whether tests notice.
mutants: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.mutants --minutes $(MINUTES)
check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
fix: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
docs: .venv/docs-ready
	$(BIN)/mkdocs build --strict
# Runs what has no record yet, hours of it from nothing; then tables, figures and their pages in the documentation.
reproduce: .venv/ready
	$(BIN)/dpvd reproduce all --jobs $(JOBS)
	$(BIN)/python -m reproduction.page
bench: .venv/ready
	$(BIN)/python -m benchmarks.run
	$(BIN)/python -m benchmarks.page
	$(BIN)/python -m benchmarks.check
bench-quick: .venv/ready
	$(BIN)/python -m benchmarks.run --quick
	$(BIN)/python -m benchmarks.check benchmarks/results/quick.json
bench-peers: .venv/ready
	$(BIN)/python -m benchmarks.run --peers-only
	$(BIN)/python -m benchmarks.page
bench-run: .venv/ready
	$(BIN)/python -m benchmarks.end_to_end --epochs 200 --data-dir "$(DPVD_DATA_DIR)"
# Two processes of one thread against one of two threads, and the bytes between them.
bench-processes: .venv/ready
	$(BIN)/python -m benchmarks.processes
# The tutorial on a million rows at full size: ten minutes and 1.5 GB. make test runs it with fewer rows.
tutorial-million: .venv/ready
	DPVD_TUTORIAL_ROWS=1000000 $(BIN)/python -m pytest -s tests/docs/test_tutorials.py -k many_rows
# Slow: runs that are killed at random instants, 300 times, and resumed; a few of them are in make test.
torture: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.torture --kills 300
# Slow: damaged files for every reader, a million; some hundreds are in make test.
fuzz: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.fuzz --inputs 1000000
# Slow: 100,000 steps of a tiny model; memory, ε and the noise's variance. A short one is in make test.
long-haul: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.long_haul --steps 100000
# Slow: the draws of privacy noise, a billion of them; half a million of either stream are in make test.
noise-battery: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.noise_battery --draws 1000000000
opacus-norms: .venv/ready
	$(BIN)/python -m benchmarks.opacus_norms
# Opacus' own tests of per-example gradients against our engines, in an environment of their own.
opacus-tests: .venv/ready
	$(BIN)/python -m benchmarks.opacus_tests
clean:
	rm -rf .venv site build dist runs

# A torch that is in .venv already is kept, whichever build it is; pip gets the one in constraints.txt
# only where there is none.
.venv/ready: pyproject.toml setup.py constraints.txt $(wildcard src/dpvd/native/*.[ch])
	$(PYTHON) tools/check_python.py
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip show --quiet torch 2>/dev/null || $(PIP_INSTALL) -c constraints.txt torch
	$(PIP_INSTALL) -e ".[dev]"
	touch $@
.venv/docs-ready: .venv/ready
	$(PIP_INSTALL) -e ".[docs]"
	touch $@
