# Everything a developer or a newcomer types. Needs python3 (3.11 or newer), make, and nothing else.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONUNBUFFERED := 1

# $(call stamp,FILES): a hash of the files, for "has anything changed since the last set-up?"
stamp = $$($(PYTHON) -c 'import hashlib, sys; print(hashlib.sha256(b"".join(open(p, "rb").read() for p in sys.argv[1:])).hexdigest())' $(1))
# pip says a line per package and per reason; this keeps the names and every line that tells of trouble.
quieter = sed -un -e 's/^Collecting \([^ ]*\).*/    \1/p; t' \
	-e 's/^\(\(Building\|Installing\|Successfully\).\{1,50\}\).*/    \1…/p; t' -e '/error\|hint\|hash/Ip'
# One make at a time works on the environment; `make demo` beside a first `make up` waits here.
lock = mkdir -p $(VENV); exec 9>$(VENV)/lock; $(call flock,LOCK_EX | fcntl.LOCK_NB) 2>/dev/null || \
	{ echo "==> waiting for another make that works on $(VENV)"; $(call flock,LOCK_EX); }
flock = $(PYTHON) -c 'import fcntl; fcntl.flock(9, fcntl.$(1))'

.PHONY: help setup setup-dev up demo test lint bench lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

setup: $(VENV)/made ## environment of the platform in .venv, from requirements.lock
	@$(call install,requirements.lock,runtime)

setup-dev: $(VENV)/made ## the same plus tools for tests and checks, from requirements-dev.lock
	@$(call install,requirements-dev.lock,dev)

# $(call install,LOCK,NAME): a no-op when this lock was installed already, or a larger one that contains it.
define install
	$(lock); \
	want="$(call stamp,$(1) pyproject.toml)"; \
	if [ "$$(cat $(VENV)/stamp-$(2) 2>/dev/null)" = "$$want" ]; then exit 0; fi; \
	if [ $(2) = runtime ] && [ "$$(cat $(VENV)/stamp-dev 2>/dev/null)" = "$(call stamp,requirements-dev.lock pyproject.toml)" ]; then exit 0; fi; \
	echo "==> installing $(1) into $(VENV) (about 30 s the first time)"; \
	$(BIN)/python -m pip install --progress-bar off --require-hashes -r $(1) 2>&1 | $(quieter); \
	echo "==> installing forebay itself, editable"; \
	$(BIN)/python -m pip install -q -e . --no-deps; \
	echo "$$want" > $(VENV)/stamp-$(2); \
	echo "==> $(VENV) is ready"
endef

$(VENV)/made:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found. Install Python 3.11 or newer, or say make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: Forebay needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Say make PYTHON=/path/to/python3.11"; exit 1; }
	@$(lock); [ ! -e $@ ] || exit 0; \
	echo "==> creating $(VENV) with $$($(PYTHON) -V)"; \
	$(PYTHON) -m venv $(VENV) || { echo "make: $(PYTHON) cannot create environments. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }; \
	touch $@

up: setup ## set up everything and run the platform with two local vLLM replicas (Ctrl-C stops all)
	@exec $(BIN)/forebay up

demo: setup ## two tenants converse through the OpenAI SDK; answers, replicas, cached tokens and the bill
	@exec $(BIN)/forebay demo

test: setup-dev ## the whole suite, real engines included (under 20 minutes on two cores)
	@$(BIN)/forebay up --prepare
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: setup-dev ## ruff, mypy (strict) and the import rules
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup-dev ## what relaying, placing and KV events cost; JSON on each one's last line
	@$(BIN)/forebay up --prepare
	@for one in relay placement events; do echo "==> $$one"; $(BIN)/python -m tests.bench.$$one; done

lock: setup-dev ## resolve both lock files anew from pyproject.toml
	@$(BIN)/python -m pip install -q uv
	$(compile) --no-annotate -o requirements.lock pyproject.toml
	$(compile) --no-annotate --group dev -c requirements.lock -o requirements-dev.lock pyproject.toml

compile = UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile -q --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-find-links --extra embedded

clean: ## remove what runs locally: engines, weights, databases, logs (keeps .venv)
	rm -rf .forebay
