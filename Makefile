PYTHON ?= python3
BIN := .venv/bin

# Only what is imported is compiled, when it is, and kept, whatever the caller's shell says: else
# every process would compile torch and transformers anew.
unexport PYTHONDONTWRITEBYTECODE
# setuptools warns of keys that we use, and of editable installations.
PIP := PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --no-compile --constraint constraints.txt
NEWEST := .venv-newest/bin

.PHONY: install demo test test-fast test-newest check format protos lint test-long web-test \
    clients screenshots site faults faults-long broken wire-law mutants reference clean

# A virtual environment with everything, at the versions that the tests ran with.
install: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt $(wildcard dspark/native/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(PIP) -e ".[all]"
	touch $@

# A local Ray cluster with the shipped pair, streaming tokens, then a small table; cleans up.
demo: install
	$(BIN)/python -m benchmarks.demo

# First what needs no port, two files at a time; then what talks over ports and starts processes,
# which waits a third of its time, three at a time.
UNITS := tests/unit tests/paper tests/test_rooms.py tests/test_protos_fresh.py

# PYTHON, ARGUMENTS, FILES at a time. They crowd two cores: what failed beside others is run once
# more, alone, if it is no more than crowding explains; and all of it, if the run itself broke off.
crowded = $(1) -m pytest -q -m "not slow" -n $(3) --dist loadfile --cache-clear $(2)
everyday = $(crowded); ended=$$?; \
	test $$ended != 3 || { echo "==== the run broke off and is begun again"; $(crowded); ended=$$?; }; \
	test $$ended = 0 || { test $$ended = 1 && \
	failed=`grep -c ': true' .pytest_cache/v/cache/lastfailed` && \
	echo "==== $$failed failed beside others; up to 20 are run again alone" && test $$failed -le 20 && \
	$(1) -m pytest -q -m "not slow" -n 0 --last-failed --last-failed-no-failures none $(2); }

test: lint
	$(call everyday,$(BIN)/python,$(UNITS),2)
	$(call everyday,$(BIN)/python,$(addprefix --ignore=,$(UNITS) tests/web),3)
	@echo "left out: tests/web, which needs a browser (make web-test), and what takes minutes (make test-long)"

# The pure rooms alone, without torch: what to run while you write.
FAST := $(addprefix tests/unit/,coordinator decoding planning rounds runtime synthetic wire) tests/paper tests/test_rooms.py
LONG := $(addprefix tests/unit/,coordinator/test_simulation.py decoding/test_exact_law.py planning/test_planner.py)
NEED_TORCH := tests/unit/coordinator/test_call_forms.py $(addprefix tests/unit/decoding/test_,exact_rounds.py philox.py)

test-fast: install
	$(BIN)/python -m pytest -q -p tests.no_torch -m "not slow" -n 2 $(addprefix --ignore=,$(LONG) $(NEED_TORCH)) $(FAST)

# The newest of everything that pyproject.toml allows, in an environment of its own: what needs no
# port runs there.
test-newest:
	test -x $(NEWEST)/python || $(PYTHON) -m venv .venv-newest
	$(NEWEST)/pip install --quiet --upgrade pip
	$(NEWEST)/pip install --quiet --upgrade --upgrade-strategy eager -e ".[all]"
	$(call everyday,$(NEWEST)/python,$(UNITS),2)

# Long tests that the everyday suite leaves out.
test-long: install
	$(BIN)/python -m pytest -q -m slow --ignore=tests/web

# The live page in a headless Chromium: Debian's package `chromium`, or the one that DSPARK_CHROMIUM
# names.
web-test: install
	$(PIP) -e ".[web]"
	$(BIN)/python -m pytest -q -rs tests/web

# Clients of other people, in an environment of their own, for tests/clients.
CLIENTS := .venv-clients/bin

clients:
	test -x $(CLIENTS)/python || $(PYTHON) -m venv .venv-clients
	$(CLIENTS)/pip install --quiet anthropic langchain-openai litellm llm "pydantic-ai-slim[openai]"

# Its pictures in docs/screenshots.
screenshots: install
	$(PIP) -e ".[web]"
	$(BIN)/python -m tests.web.screenshots

# The documentation as a site with search, in site/.
site: install
	$(PIP) -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The checks of reliability that take minutes, one JSON object each; see docs/reliability.md.
faults: install
	$(BIN)/python -m tests.faults

# Builds that break one promise each, before the stories that have to notice.
broken: install
	$(BIN)/python -m tests.mutation --list promises

# The law of sampled answers through three processes, and two builds in which it is wrong; --kept
# goes on after a stop.
wire-law: install
	$(BIN)/python -m tests.wire_law
	$(BIN)/python -m tests.wire_law.broken

# Bugs put into every place where output can change, one at a time: which of them the tests do not
# notice.
mutants: install
	$(BIN)/python -m tests.mutation

# Those that take hours.
faults-long: install
	$(BIN)/python -m tests.faults --long

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# `make test` looks at types beside its other tests.
check: lint
	$(BIN)/mypy

# Puts the code into the form that `check` wants, where that can be done without thinking.
format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Regenerates the checked-in stubs; a test proves them fresh.
protos: install
	$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=. --pyi_out=. --grpc_python_out=. protos/dspark/wire/v1/*.proto

# Rewrites docs/reference from configuration classes, parsers, metrics and protos; a test proves the
# pages fresh.
reference: install
	$(BIN)/python docs/reference/generate.py

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
