# One front door. Needs Python 3.11 or newer with venv, g++ and make; everything else goes into .venv.

PYTHON ?= python3
MODEL ?=
ARGS ?=

BIN := .venv/bin
NATIVE := $(wildcard CMakeLists.txt) $(shell find src -path '*/csrc/*' -type f)
HAS_HEADERS = $(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
# Old pip takes the versions for building from the first, new pip from the second.
PIP = PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	$(BIN)/python -m pip --disable-pip-version-check
# An editable install knows the modules by name, so a new one needs a reinstall, a change in one does not.
MODULES := .venv/modules-$(shell find src -name '*.py' | sort | cksum | cut -d ' ' -f 1)
INPUTS := pyproject.toml constraints.txt $(NATIVE) $(MODULES)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help serve chat doctor model test test-all sanitize bench-peers bench-kv verify chaos lint format env clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: .venv/installed ## Serve the default model on 127.0.0.1:8000, or MODEL=name-or-file ARGS="--port 9000 …"
	@$(BIN)/pitstop serve $(if $(MODEL),"$(MODEL)") $(ARGS)

chat: .venv/installed ## Talk to the default model in the terminal, or MODEL=name-or-file
	@$(BIN)/pitstop chat $(if $(MODEL),--model "$(MODEL)") $(ARGS)

doctor: .venv/installed ## Say what this machine has, and what is missing
	@$(BIN)/pitstop doctor $(if $(MODEL),"$(MODEL)") $(ARGS)

model: .venv/installed ## Fetch the default model once, or MODEL=name
	@$(BIN)/pitstop models pull $(if $(MODEL),"$(MODEL)")

QUICK = not slow and not gpu and not network
# Two processes, of which the one that is done takes over tests of the other: long ones come first, lest one is left at the end. Tracebacks are
# plain: reading source for the others fails in Python 3.11 beside a thread that does.
TWO = -n 2 --dist worksteal --tb=native
# Files with such tests: to import all the others takes longer than some of those run.
ALONE = $(shell grep -rl --include='test_*.py' 'mark\.alone' tests)
# $(1) which tests, $(2) where; what ARGS selects may be none of them (status 5).
pytest = $(BIN)/python -m pytest -m "$(QUICK) and $(1)" $(2) $(ARGS) || [ $$? = 5 ]

test: .venv/installed-dev model ## Run the tests that need neither a GPU nor much time; ARGS="-k name"
	$(call pytest,not alone,$(TWO) tests/unit tests/layering)
	$(call pytest,not alone,$(TWO) tests/docs tests/e2e tests/precision tests/ops)
	$(call pytest,alone,$(ALONE))

test-all: .venv/installed-dev model ## Run every test this machine can run
	$(BIN)/python -m pytest -m "not gpu" $(ARGS)

# An environment on top of .venv's packages, with the kernels built to check themselves.
sanitize: .venv/installed-dev ## Run the C++ kernels' tests with addresses and undefined behaviour checked
	@rm -rf .venv-sanitize && $(BIN)/python -m venv --without-pip .venv-sanitize
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
		"$$(.venv-sanitize/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth"
	@$(PIP) --python .venv-sanitize/bin/python install --no-deps --ignore-installed -C build-dir=build/sanitize -C cmake.define.PITSTOP_SANITIZE=ON .
	ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$$(c++ -print-file-name=libasan.so) $$(c++ -print-file-name=libubsan.so)" \
		.venv-sanitize/bin/python -m pytest tests/ops --ignore-glob='tests/ops/test_triton*' -m "not slow" $(ARGS)

bench-peers: .venv/installed-dev model ## Measure beside llama.cpp and OpenVINO, which are installed into .peers; ARGS="--quick"
	$(BIN)/python bench/peers.py $(if $(MODEL),--model "$(MODEL)") $(ARGS)

bench-kv: .venv/installed-dev model ## Measure the KV codecs: loss and bits, then speed, beside llama.cpp's caches; ARGS="--quick"
	$(BIN)/python bench/kv_quality.py $(if $(MODEL),--model "$(MODEL)") $(ARGS)
	$(BIN)/python bench/kv_speed.py $(if $(MODEL),--model "$(MODEL)") $(ARGS)

verify: .venv/installed-dev model ## Verify Pitstop, four minutes, into docs/verify; ARGS="--against llama.cpp" with its server beside it
	$(BIN)/python bench/verify.py $(if $(MODEL),--model "$(MODEL)") $(ARGS)

chaos: .venv/installed-dev model ## Harm a server and see what its clients notice, about an hour; ARGS="--quick" takes minutes
	$(BIN)/python bench/chaos.py $(if $(MODEL),--model "$(MODEL)") $(ARGS)

lint: .venv/installed-dev ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: .venv/installed-dev ## Put style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

env: .venv/installed-dev ## Make .venv with everything for serving and testing

clean: ## Remove .venv, build outputs and caches; fetched models stay
	rm -rf .venv .venv-sanitize build dist .pytest_cache .ruff_cache .hypothesis .schemathesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

.venv/installed: $(INPUTS) | .venv/bin/python
	@echo "Installing Pitstop and what it needs into .venv (minutes the first time)"
	@$(PIP) install -e .
	@touch $@

.venv/installed-dev: $(INPUTS) | .venv/bin/python
	@echo "Installing Pitstop and what it and its tests need into .venv (minutes the first time)"
	@$(PIP) install -e '.[dev]'
	@touch .venv/installed $@

$(MODULES): | .venv/bin/python
	@rm -f .venv/modules-* && touch $@

.venv/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed. On Debian: apt install python3 python3-venv"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Pitstop needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V). Name another: make PYTHON=python3.12 …"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv. On Debian: apt install python3-venv"; exit 1; }
	@$(HAS_HEADERS) && command -v c++ >/dev/null || \
		echo "No C++ compiler or Python headers: slow torch code will run. On Debian: apt install g++ python3-dev, then make clean"
	@rm -rf .venv
	@$(PYTHON) -m venv .venv
