PYTHON ?= python3
TORCH ?= 2.13.0
BIN := .venv/bin

.PHONY: install demo test check protos lint test-long web-test screenshots bench-quick faults faults-long reference clean

# A virtual environment with everything. torch goes first, at a version with a small CPU build.
install: .venv/.installed

.venv/.installed: pyproject.toml $(wildcard dspark/native/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet "torch==$(TORCH)"
	$(BIN)/pip install --quiet -e ".[all]"
	touch $@

# A local Ray cluster with the shipped pair, streaming tokens, then a small table; cleans up.
demo: install
	$(BIN)/python -m benchmarks.demo

# Two files at a time: first what needs no port, then what talks over ports and starts processes.
UNITS := tests/unit tests/paper tests/test_rooms.py tests/test_protos_fresh.py

test: install check
	$(BIN)/python -m pytest -q -m "not slow" -n 2 --dist loadfile $(UNITS)
	$(BIN)/python -m pytest -q -m "not slow" -n 2 --dist loadfile $(addprefix --ignore=,$(UNITS) tests/web)
	@echo "left out: tests/web, which needs a browser (make web-test), and what takes minutes (make test-long)"

# Long tests that the everyday suite leaves out.
test-long: install
	$(BIN)/python -m pytest -q -m slow --ignore=tests/web

# The live page in a headless Chromium: Debian's package `chromium`, or the one that DSPARK_CHROMIUM names.
web-test: install
	$(BIN)/pip install --quiet -e ".[web]"
	$(BIN)/python -m pytest -q -rs tests/web

# Its pictures in docs/screenshots.
screenshots: install
	$(BIN)/pip install --quiet -e ".[web]"
	$(BIN)/python -m tests.web.screenshots

# Short forms of the benchmark rows 3.1 to 3.6, one JSON object each; DSPARK_VLLM_PYTHON names a peer's python.
bench-quick: install
	$(BIN)/python -m benchmarks.quick

# The checks of reliability that take minutes, one JSON object each; see docs/reliability.md.
faults: install
	$(BIN)/python -m benchmarks.faults

# Those that take hours.
faults-long: install
	$(BIN)/python -m benchmarks.faults --long

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Regenerates the checked-in stubs; a test proves them fresh.
protos: install
	$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=. --pyi_out=. --grpc_python_out=. protos/dspark/wire/v1/*.proto

# Rewrites docs/reference from configuration classes, parsers, metrics and protos; a test proves the pages fresh.
reference: install
	$(BIN)/python docs/reference/generate.py

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
