PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow test-drills test-long test-api-full test-browser pictures coverage docs lint lock clean

# pip leaves modules uncompiled; the first process that imports one keeps what it compiles for all others.
unexport PYTHONDONTWRITEBYTECODE

# Locked versions first, then the package itself without looking for any others.
.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: .venv/ready
	$(BIN)/fclub demo

# Tests run in a random order; SEED=n repeats one. Seeds of global generators stay alone: nothing uses them.
ifndef SEED
SEED := $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')
endif
PYTEST = $(BIN)/pytest --randomly-seed=$(SEED) --randomly-dont-reset-seed
AGAIN = { code=$$?; echo "The same order again: make $@ SEED=$(SEED)"; exit $$code; }

# On both cores, a file on one of them: its tests share what they set up.
test: .venv/ready
	$(PYTEST) -n 2 --dist loadfile || $(AGAIN)

test-slow: .venv/cluster
	$(PYTEST) -n 2 --dist loadfile -m slow --ignore tests/service || $(AGAIN)

# Drills with real processes: kills, load, fuzzing.
test-drills: .venv/ready
	$(PYTEST) -n 2 --dist loadfile -m slow tests/service || $(AGAIN)

# Every sabotage at two budgets, every kind of damage to a cluster of brokers.
test-long: .venv/ready
	$(PYTEST) -n 2 -m long || $(AGAIN)

# The fuzzing of the HTTP service with ten times as many cases.
test-api-full: .venv/ready
	FCLUB_API_CASES=5000 $(PYTEST) -m slow tests/service/test_api_cases.py -s || $(AGAIN)

# Every line and branch of core and protocol, with kernels as plain Python so that theirs count too; only
# what helps to compile needs the compiler.
COVER := --cov=fclub.core --cov=fclub.protocol --cov-branch
coverage: .venv/ready
	$(PYTEST) -q tests/core/test_borrowing.py tests/core/test_compiling.py $(COVER) --cov-report=
	NUMBA_DISABLE_JIT=1 $(PYTEST) -n 2 tests/core tests/protocol $(COVER) --cov-append \
		--cov-report=term-missing:skip-covered --cov-fail-under=100 || $(AGAIN)

# Needs chromium and chromium-driver; screenshots are left in out/screenshots.
test-browser: .venv/docs node_modules/axe-core
	$(PYTEST) -m browser || $(AGAIN)

# The pictures of the README, made by `fclub up` and `fclub demo`; needs chromium.
pictures: .venv/docs
	$(BIN)/python -m tests.browser.take_pictures

node_modules/axe-core:
	npm install --no-save --silent axe-core@4 || echo "axe-core cannot be had here: its tests skip"

docs: .venv/docs
	$(BIN)/mkdocs build --strict

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Dask and Ray, for the tests that start a cluster of each.
.venv/cluster: .venv/ready requirements-cluster.lock
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-cluster.lock
	touch $@

# The site and the browser's driver.
.venv/docs: .venv/ready requirements-docs.lock
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-docs.lock
	touch $@

# Refresh the locked versions from pyproject.toml.
COMPILE := $(BIN)/pip-compile --quiet --strip-extras --no-header --no-annotate --no-emit-index-url \
	--no-emit-trusted-host --no-emit-find-links --no-emit-options
lock: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check pip-tools
	$(COMPILE) --extra dev --extra pandas --extra service -o requirements.lock pyproject.toml
	$(COMPILE) --extra dask --extra ray -c requirements.lock -o requirements-cluster.lock pyproject.toml
	$(COMPILE) --extra docs --extra browser -c requirements.lock -o requirements-docs.lock pyproject.toml

clean:
	rm -rf .venv
