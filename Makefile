# Everything that is installed goes into .venv; nothing outside the project is touched.
PYTHON ?= python3
BIN := .venv/bin
KILLS ?= 500
PIPELINE_KILLS ?= 20
SHARD_KILLS ?= 20
SHARDS ?= 3
SECONDS_LONG ?= 600
SECONDS_REDIS ?= 180

.PHONY: run test lint bench soak chaos chaos-shards chaos-pipeline chaos-redis contract-redis clean

run: .venv/installed
	$(BIN)/tenantq demo

test: .venv/installed .venv/tools lint
	$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/installed
	$(BIN)/python -m bench

soak: .venv/installed
	$(BIN)/python -m tests.crash.chaos --seconds $(SECONDS_LONG)

chaos: .venv/installed
	$(BIN)/python -m tests.crash.chaos --kills $(KILLS)

chaos-shards: .venv/installed
	$(BIN)/python -m tests.crash.shards_chaos --kills $(SHARD_KILLS) --shards $(SHARDS)

chaos-pipeline: .venv/installed
	$(BIN)/python -m tests.pipeline.kills --kills $(PIPELINE_KILLS)

chaos-redis: .venv/installed .venv/tools
	$(BIN)/python -m tests.redis_store.chaos --seconds $(SECONDS_REDIS)

contract-redis: .venv/installed .venv/tools
	$(BIN)/pytest tests/contract/test_*.py tests/redis_store --redis-in-full -k redis

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# strace injects disk errors into the crash tests, curl is one of the clients of the HTTP tests, Spark needs Java, reports are looked at in
# Chromium, the second store is Redis. Installed where this may be done; else one sentence says what is missing.
.venv/tools: .venv/installed
	@for tool in strace curl java chromium redis-server; do package=$$tool; [ $$tool = java ] && package=openjdk-17-jre-headless; \
	  command -v $$tool >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq $$package >/dev/null; } \
	  || echo "$$tool is missing and the tests that need it cannot run: install $$package with your package manager"; done
	@touch .venv/tools

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("tenantq needs Python 3.11 or newer, this is %d.%d" % sys.version_info[:2]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[parquet,remote,rpc,spark,aws,gcp,azure,console,redis,test,lint,bench]'
	touch .venv/installed
