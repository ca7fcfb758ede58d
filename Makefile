# `make demo` and `make test` each install what they need into .venv, from Python 3.11 and make alone.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
PYTHONS := $(PYTHON) python3.11 python3 python

.DEFAULT_GOAL := help
.PHONY: help install demo test check format lint types layers bench soak gen lock clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' Makefile

install: $(STAMP) ## install the locked environment into .venv

demo: $(STAMP) ## the main job on loopback with real parts
	$(BIN)/tidegate demo

test: $(STAMP) ## the whole suite, with everything that `make check` looks at
	$(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder -m "not quiet" || \
		$(BIN)/python -m pytest --last-failed --last-failed-no-failures none -m "not quiet"
	$(BIN)/python -m pytest -m quiet

check: format lint types layers ## format, lint, types and layers

format: $(STAMP)
	$(BIN)/ruff format --check .

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/pyright --pythonpath $(BIN)/python

layers: $(STAMP)
	$(BIN)/lint-imports

bench: $(STAMP) ## the performance table; writes build/bench.json
	$(BIN)/python -m tests.bench

soak: $(STAMP) ## the long fault and load runs; draws build/soak.svg
	$(BIN)/python -m tests.soak

gen: $(STAMP) ## write what is generated: the edge link's stubs, the configuration's JSON Schema
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=proto --pyi_out=proto --grpc_python_out=proto \
		proto/edgewire/v1/*.proto
	mkdir -p deploy
	$(BIN)/python -m gateway.cli.schema > deploy/tidegate.schema.json.new
	mv deploy/tidegate.schema.json.new deploy/tidegate.schema.json

lock: $(STAMP) ## compile requirements.lock, keeping the pins that still fit
	$(BIN)/uv pip compile pyproject.toml --all-extras --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-annotate --no-header --quiet -o requirements.lock

clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist

$(STAMP): requirements.lock pyproject.toml
	@for python in $(PYTHONS); do \
		if $$python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then \
			exec $$python .ci/install.py $(VENV); \
		fi; \
	done; \
	echo "make: Python 3.11 not found; install it, or say where it is: make PYTHON=/path/to/python3.11" >&2; \
	exit 1
