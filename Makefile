# `make demo` and `make test` set up everything that they need, once, in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed

.PHONY: demo test test-slow test-device check bench breadth format clean

demo: $(INSTALLED)
	$(BIN)/placewright compare nmt-4 --machine k40x4 --seconds 5 \
	    --methods single:gpu:0,round-robin,random,expert:hdp,equal-layers,annealing,auto

test: $(INSTALLED)
	$(BIN)/python -m pytest -m "not slow and not device"

test-slow: $(INSTALLED)
	$(BIN)/python -m pytest -m "slow and not device"

test-device: $(INSTALLED)
	$(BIN)/python -m pytest -m device

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py
	$(BIN)/python -m tests.size_report

bench: $(INSTALLED)
	$(BIN)/python benchmarks/bench_kernel.py
	$(BIN)/python benchmarks/bench_capture.py

breadth: $(INSTALLED)
	$(BIN)/python benchmarks/breadth.py --fresh

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV)

# An open range for torch would fetch the newest build with gigabytes of CUDA packages: pinned here alone.
$(INSTALLED): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $@
