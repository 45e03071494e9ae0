# Everything is installed into .venv and examples/typescript/node_modules. Outside the project, only tools are installed, with apt.
PYTHON ?= python3
BIN := .venv/bin
KILLS ?= 500
PIPELINE_KILLS ?= 20
SHARD_KILLS ?= 20
SHARDS ?= 3
SECONDS_LONG ?= 600
SECONDS_REDIS ?= 180
MINUTES_CLUSTER ?= 20

SERVER_EXTRAS := console,web
PIPELINE_EXTRAS := $(SERVER_EXTRAS),parquet,remote,spark
ALL_EXTRAS := $(PIPELINE_EXTRAS),rpc,aws,gcp,azure,redis,postgres,rabbitmq,otel,test,lint,docs,bench
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable

.PHONY: run pipeline test lint docs bench soak chaos chaos-shards chaos-pipeline chaos-redis chaos-cluster contract-redis contract-postgres clean

# The server, the demo and the console need about 100 MB; the pipeline and the tests install their own libraries.
run: .venv/server
	$(BIN)/tenantq demo

# Installs what 'tenantq pipeline' needs: PySpark, Arrow and Java.
pipeline: .venv/pipeline

# Three processes keep two cores busy: one runs the tests that mostly wait.
test: .venv/installed .venv/tools examples/typescript/node_modules lint
	$(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell README.md CHANGELOG.md docs

docs: .venv/installed
	$(BIN)/python -m docs.generate
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "read it with: $(BIN)/python -m http.server --directory site"

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

chaos-cluster: .venv/installed .venv/tools
	$(BIN)/python -m tests.crash.cluster_chaos --minutes $(MINUTES_CLUSTER) $(if $(SEED),--seed $(SEED))

contract-redis: .venv/installed .venv/tools
	$(BIN)/pytest tests/contract tests/redis_store tests/remote_store --store redis --numprocesses 2 --dist loadfile

contract-postgres: .venv/installed .venv/tools
	$(BIN)/pytest tests/contract tests/postgres_store tests/remote_store --store postgres --numprocesses 2 --dist loadfile

clean:
	rm -rf .venv examples/typescript/node_modules examples/typescript/build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# strace injects disk errors into the crash tests, curl is one of the clients of the HTTP tests, Spark needs Java, reports are checked
# in Chromium, Redis and PostgreSQL are stores, migrations read from PostgreSQL and RabbitMQ, one example is in TypeScript, and promtool checks alert rules. They are installed with apt where possible; otherwise a message names what is missing.
define INSTALL_TOOLS
for tool in $$tools; do package=$$tool; [ $$tool = java ] && package=openjdk-17-jre-headless; [ $$tool = psql ] && package=postgresql; [ $$tool = promtool ] && package=prometheus; \
  command -v $$tool >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq $$package >/dev/null; } \
  || echo "$$tool is missing and its tests cannot run. Install $$package with your package manager."; done
endef

.venv/tools: .venv/installed
	@tools="strace curl java chromium redis-server psql rabbitmq-server npm promtool" && $(INSTALL_TOOLS)
	@touch .venv/tools

examples/typescript/node_modules: examples/typescript/package.json | .venv/tools
	@! command -v npm >/dev/null || npm install --silent --no-package-lock --no-audit --no-fund --prefix examples/typescript

.venv/server: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("tenantq needs Python 3.11 or newer, this is %d.%d" % sys.version_info[:2]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(INSTALL) '.[$(SERVER_EXTRAS)]'
	@touch .venv/server

.venv/pipeline: .venv/server
	$(INSTALL) '.[$(PIPELINE_EXTRAS)]'
	@tools="java" && $(INSTALL_TOOLS)
	@touch .venv/pipeline

.venv/installed: .venv/server
	$(INSTALL) '.[$(ALL_EXTRAS)]'
	@touch .venv/installed
