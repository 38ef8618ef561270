# The same few commands everywhere. Each works in a fresh clone: the first one makes .venv.

PYTHON ?= python3
SEEDS ?= 50
SCENARIO ?= cluster
FUZZ_SECONDS ?= 60
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.ready-demo
PROTOS := $(wildcard proto/comet/v1/*.proto)

.DEFAULT_GOAL := help
.PHONY: help demo spark test quick check deploy-check pythons format sim bench fuzz proto generate lock docs install etcd chromium java proxies promtool helm containers clean

help:  ## Show what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

demo: $(DEMO_READY)  ## Live quotes, a dashboard, and what Spark makes of them; ARGS=--no-spark without Spark
	@$(BIN)/comet demo --install-spark 'scripts/spark "$(PYTHON)" $(VENV)' $(ARGS)

spark: $(DEMO_READY)  ## Spark and a Java, which the demo else gets while it runs
	@scripts/spark "$(PYTHON)" $(VENV)

test: $(READY) etcd chromium java proxies promtool helm containers  ## The whole test suite
	$(BIN)/python -m pytest -n 2 $(ARGS)

quick: $(READY) etcd  ## The tests that take seconds
	$(BIN)/python -m pytest -m "not slow" tests/tidy tests/unit tests/contract tests/property $(ARGS)

check: $(READY)  ## Style, format, imports, types and known vulnerabilities
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive broker gateway sdk web demo testing bench
	$(BIN)/mypy
	$(BIN)/python scripts/audit

deploy-check: $(READY) etcd proxies promtool helm containers  ## Check what is deployed: image, Compose files, chart, alerts, wheels
	$(BIN)/python -m pytest tests/deploy $(ARGS)

pythons:  ## Run unit, contract and property tests with the Pythons of other Debian releases
	scripts/pythons $(ARGS)

format: $(READY)  ## Put the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

sim: $(READY)  ## Simulate a cluster under faults: make sim SEEDS=1000; one run again: make sim SEED=123; SCENARIO=broker; planted bugs: MUTANT=all
	$(BIN)/python -m tests.sim $(if $(MUTANT),--mutant $(MUTANT) $(if $(SEED),--seed $(SEED)),$(SCENARIO) $(if $(SEED),--seed $(SEED) -v,--seeds $(SEEDS))) $(ARGS)

bench: $(READY)  ## Measure, with the machine's own limits beside it
	$(BIN)/comet bench $(ARGS)

fuzz: $(READY)  ## Fuzz the decoder of record batches: make fuzz FUZZ_SECONDS=600
	scripts/fuzz $(BIN)/python $(FUZZ_SECONDS)

proto: $(READY)  ## Generate the code of the protocol again
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=sdk --pyi_out=sdk --grpc_python_out=sdk $(PROTOS)

generate: $(READY)  ## Generate the synchronous SDK and the dashboards again
	$(BIN)/python scripts/generate.py
	$(BIN)/python scripts/dashboards.py

lock: $(READY)  ## Lock the dependencies with hashes again: make lock ARGS=--upgrade for newer versions
	scripts/lock $(BIN)/python $(ARGS)

docs: $(READY)  ## Build the documentation site into build/site
	$(BIN)/python scripts/docs

install: $(READY)  ## Make .venv

# The tests of clusters run against a real etcd. Found, or installed, or the message says how to.
etcd: $(READY)
	@scripts/etcd $(BIN)/python

# Those of the dashboard run in a real browser.
chromium: $(READY)
	@scripts/chromium $(BIN)/python

# Those of Spark need a Java.
java: $(READY)
	@scripts/java $(BIN)/python

# Those of proxies need an nginx, a HAProxy and an Envoy.
proxies: $(READY)
	@scripts/proxies $(BIN)/python

# Those of alerts need promtool and a Prometheus.
promtool: $(READY)
	@scripts/promtool $(BIN)/python

# Those of the image build and run it without a daemon.
containers: $(READY)
	@scripts/containers $(BIN)/python

# Those of the chart need a helm, and the schemas of Kubernetes.
helm: $(READY)
	@scripts/helm $(BIN)/python

# Made once, and again whenever the dependencies change. The demo needs a twentieth of what development needs.
$(READY): pyproject.toml requirements/build.txt requirements/development.txt scripts/venv
	@scripts/venv "$(PYTHON)" $(VENV) development

$(DEMO_READY): pyproject.toml requirements/build.txt requirements/demo.txt scripts/venv
	@scripts/venv "$(PYTHON)" $(VENV) demo

clean:  ## Remove all that the other commands make
	rm -rf $(VENV) $(VENV).lock build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
