# The commands of streamdedup; 'make' lists them. They need Python 3.11+. The tests and the Kafka demo
# also need a Docker engine, or Java 17+ and Maven, and say so if both are missing.

VENV := .venv
BIN := $(VENV)/bin
BENCH := .venv-bench
SPARK := .venv-spark
DOCS := .venv-docs
MUTANTS := .venv-mutants
LOCKS := deploy/requirements
# A lock names all packages. Without --no-deps, pip 23 looks at the newest version of a package with
# extras, and refuses it because the lock has another one.
LOCKED := --quiet --disable-pip-version-check --no-deps
PORT ?= 9092
ARGS ?=
SEEDS ?= 3

.DEFAULT_GOAL := help
.PHONY: help demo demo-kafka demo-spark test test-faults soak test-long test-spark coverage mutants test-kafka broker lint types measure format fuzz bench-sketch bench-index bench-import bench-capacity bench-pipeline bench-scale bench-files bench-spark bench-adversaries newcomer package release matrix chart rules browser docs kerberos image audit lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/run.stamp ## Deduplicate the docstrings of this machine's Python, in about a minute
	@$(BIN)/streamdedup demo

demo-kafka: $(VENV)/dev.stamp ## Run the demo through real Kafka topics
	@$(BIN)/python -m deploy.demo_kafka

demo-spark: $(SPARK)/spark.stamp ## Deduplicate a made-up archive on Spark, and start a stream from it
	@$(SPARK)/bin/python -m deploy.demo_spark

test: $(VENV)/dev.stamp ## Run the tests against a real Kafka broker
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m "not long and not faults and not spark"

test-faults: $(VENV)/dev.stamp ## Inject faults: every fail-point, network, cluster, disk (SEEDS=3; ARGS=FILE)
	@STREAMDEDUP_TEST_SEEDS=$(SEEDS) $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup -m faults $(ARGS)

soak: $(VENV)/dev.stamp ## Disturb a worker for minutes or hours (ARGS="--minutes 60 --seed 2"), and check its verdicts
	@$(BIN)/python -m tests.faults.soak $(ARGS)

test-long: $(VENV)/dev.stamp ## Run the tests that take long: kills, lost brokers, rebuilds
	@$(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m long

test-spark: $(SPARK)/spark.stamp ## Run the tests on Spark: the same verdicts, lost executors, the hand-over
	@$(SPARK)/bin/python -m pytest -m spark tests/spark

# Kernels are measured as plain Python. Those of the index, which dedup's tests use, stay compiled.
coverage: $(VENV)/dev.stamp ## Check that sketch, dedup and formats are covered to 100 %
	@rm -f .coverage
	@STREAMDEDUP_TEST_QUICK=1 NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest tests/sketch tests/formats \
		--quiet -m "not compiled" -W "ignore:overflow encountered:RuntimeWarning" --cov --cov-report=
	@STREAMDEDUP_TEST_QUICK=1 $(BIN)/python -m pytest tests/dedup \
		--quiet -W "ignore:overflow encountered:RuntimeWarning" --cov --cov-append --cov-report=
	@$(BIN)/python -m coverage report
	@$(BIN)/python -m coverage report --show-missing --fail-under 100 \
		--include 'streamdedup/sketch/*,streamdedup/dedup/*,streamdedup/formats/*'

mutants: $(MUTANTS)/mutants.stamp ## Change the code a little, and check that the tests notice (ARGS="dedup --all")
	@$(MUTANTS)/bin/python -m tests.mutants $(ARGS)

test-kafka: $(VENV)/dev.stamp ## Run only the tests that need Kafka
	@$(BIN)/python -m pytest -m "kafka and not long and not faults" $(ARGS)

fuzz: $(VENV)/dev.stamp ## Try random and damaged input (SECONDS=90 or CASES=; ARGS=--seed, --target, --coverage)
	@$(BIN)/python -m tests.fuzz $(if $(CASES),--cases $(CASES)) $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

broker: $(VENV)/dev.stamp ## Run a Kafka broker in the foreground (PORT=9092)
	@$(BIN)/python -m deploy.broker --port $(PORT)

lint: $(VENV)/dev.stamp ## Check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/dev.stamp ## Check types
	@$(BIN)/mypy

measure: $(VENV)/dev.stamp ## Count lines, classes, functions and words
	@$(BIN)/python -m tests.support.inventory

format: $(VENV)/dev.stamp ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench-sketch: $(BENCH)/peers.stamp ## Compare the sketch with datasketch and rensa, on one core
	@$(BENCH)/bin/python -m benchmarks.bench_sketch

bench-index: $(BENCH)/peers.stamp ## Measure the index up to 10 million documents, and compare it with peers
	@$(BENCH)/bin/python -m benchmarks.bench_index

bench-import: $(VENV)/dev.stamp ## Measure 'index import' of kept sketches, next to applying and to an export (ARGS=--quick)
	@$(BIN)/python -m benchmarks.bench_import $(ARGS)

bench-capacity: $(VENV)/run.stamp ## Measure an index of 20 million documents, cold and warm (ARGS="--documents 2000000")
	@$(BIN)/python -m benchmarks.capacity $(ARGS)

bench-pipeline: $(VENV)/dev.stamp $(BENCH)/peers.stamp ## Compare the worker with plain copies, through a real broker (ARGS=--quick)
	@PATH="$(CURDIR)/$(BENCH)/bin:$$PATH" $(BIN)/python -m benchmarks.bench_pipeline $(ARGS)

bench-scale: $(VENV)/dev.stamp ## Compare mode split with one worker; the judge alone; pauses of takeovers (ARGS=--quick)
	@$(BIN)/python -m benchmarks.bench_scale $(ARGS)

bench-files: $(BENCH)/peers.stamp ## Compare 'streamdedup dedup' with datasketch and rensa (ARGS=--quick)
	@$(BENCH)/bin/python -m benchmarks.bench_files $(ARGS)

bench-spark: $(SPARK)/spark.stamp ## Measure the backfill on Spark, and compare it with MinHashLSH (ARGS="--parts peer")
	@$(SPARK)/bin/python -m benchmarks.bench_spark $(ARGS)

bench-adversaries: $(VENV)/dev.stamp ## Measure what crafted input costs, next to ordinary input (ARGS=--mb 8)
	@$(BIN)/python -m benchmarks.bench_adversaries $(ARGS)

newcomer: ## Time the README's first commands in a fresh clone with empty caches
	@.ci/newcomer

package: $(VENV)/dev.stamp ## Build the wheel and the source distribution, and check them
	@.ci/package

release: $(VENV)/dev.stamp ## Build and check what a release publishes, in dist/ (ARGS=vX.Y.Z); upload nothing
	@.ci/release $(ARGS)

matrix: $(VENV)/dev.stamp ## Test every supported Python, dependency and Kafka (ARGS='3.13' for one)
	@.ci/matrix $(ARGS)

rules: $(VENV)/dev.stamp ## Check the alerts and the dashboard with Debian's promtool
	@.ci/rules

browser: $(VENV)/dev.stamp ## Check the worker's page in Debian's Chromium
	@.ci/browser

kerberos: $(VENV)/dev.stamp ## Check the login with Kerberos, against Debian's KDC
	@.ci/kerberos

docs: $(DOCS)/docs.stamp ## Build docs/ as a site in build/docs; broken links and headings fail
	@PYTHON=$(DOCS)/bin/python .ci/docs

image: $(VENV)/dev.stamp ## Build the container image and run it with compose (a Docker engine)
	@.ci/image

chart: $(VENV)/run.stamp ## Check the Helm chart with real Helm, without a cluster (installs Go if missing)
	@.ci/chart

audit: $(VENV)/bin/python ## Look up known vulnerabilities of the locked packages, and write an SBOM
	@.ci/audit

lock: $(VENV)/run.stamp ## Choose the newest allowed versions and write the lock files
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate pyproject.toml --output-file $(LOCKS)/run.lock
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --extra dev pyproject.toml --output-file $(LOCKS)/dev.lock
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --extra registry pyproject.toml --output-file $(LOCKS)/registry.lock
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --extra dev --extra spark pyproject.toml --output-file $(LOCKS)/spark.lock
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --extra dev --extra mutants pyproject.toml --output-file $(LOCKS)/mutants.lock
	@echo 'hatchling>=1.27,<2' | $(BIN)/uv pip compile --quiet --upgrade --universal \
		--python-version 3.11 --generate-hashes --no-header --no-annotate - \
		--output-file $(LOCKS)/build.lock
	@printf 'furo>=2025.9,<2027\nmyst-parser>=5,<6\nsphinx>=9,<10\n' | $(BIN)/uv pip compile --quiet \
		--upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate - \
		--output-file $(LOCKS)/docs.lock
	@printf 'cyclonedx-bom>=7,<8\npip-audit>=2.10,<3\ntwine>=6,<7\n' | $(BIN)/uv pip compile --quiet --upgrade \
		--universal --python-version 3.11 --generate-hashes --no-header --no-annotate - \
		--output-file $(LOCKS)/audit.lock

clean: ## Remove the environments and the output of the demos
	rm -rf $(VENV) $(BENCH) $(DOCS) $(MUTANTS) $(SPARK) build/docs build/mutants demo-out demo-out-spark

$(VENV)/bin/python:
	@for python in python3 python3.13 python3.12 python3.11; do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11, 2))' 2>/dev/null; then \
			echo "Creating $(VENV) with $$($$python --version)"; \
			$$python -m venv $(VENV) && exit 0; \
			rm -rf $(VENV); \
			echo "streamdedup: $$python cannot create an environment; install its venv module" \
				"(Debian: apt-get install python3-venv)" >&2; \
			exit 1; \
		fi; \
	done; \
	echo "streamdedup: no Python 3.11.2 or newer was found; install one (Debian: apt-get install" \
		"python3 python3-venv)" >&2; exit 1

$(VENV)/run.stamp: $(VENV)/bin/python pyproject.toml $(LOCKS)/run.lock
	@echo "Installing streamdedup and its dependencies"
	@$(BIN)/python -m pip install $(LOCKED) -r $(LOCKS)/run.lock
	@$(BIN)/python -m pip install $(LOCKED) --editable .
	@$(BIN)/streamdedup warm
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp $(LOCKS)/dev.lock
	@echo "Installing the dependencies of the tests"
	@$(BIN)/python -m pip install $(LOCKED) -r $(LOCKS)/dev.lock
	@touch $@

# The peers are only measured, so they have a separate environment.
$(BENCH)/peers.stamp: $(VENV)/bin/python pyproject.toml $(LOCKS)/run.lock
	@echo "Installing streamdedup and the peers for comparison"
	@test -x $(BENCH)/bin/python || $(BIN)/python -m venv $(BENCH)
	@$(BENCH)/bin/python -m pip install $(LOCKED) -r $(LOCKS)/run.lock
	@$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

# Spark is half a gigabyte.
$(SPARK)/spark.stamp: $(VENV)/bin/python pyproject.toml $(LOCKS)/spark.lock
	@echo "Installing streamdedup, Spark and the dependencies of the tests"
	@test -x $(SPARK)/bin/python || $(BIN)/python -m venv $(SPARK)
	@$(SPARK)/bin/python -m pip install $(LOCKED) -r $(LOCKS)/spark.lock
	@$(SPARK)/bin/python -m pip install $(LOCKED) --editable .
	@touch $@

# The tool is needed for mutants only.
$(MUTANTS)/mutants.stamp: $(VENV)/bin/python pyproject.toml $(LOCKS)/mutants.lock
	@echo "Installing streamdedup, the dependencies of the tests and mutmut"
	@test -x $(MUTANTS)/bin/python || $(BIN)/python -m venv $(MUTANTS)
	@$(MUTANTS)/bin/python -m pip install $(LOCKED) -r $(LOCKS)/mutants.lock
	@$(MUTANTS)/bin/python -m pip install $(LOCKED) --editable .
	@touch $@

# The site's tools are needed for the site only.
$(DOCS)/docs.stamp: $(VENV)/bin/python $(LOCKS)/docs.lock
	@echo "Installing the tools of the documentation's site"
	@test -x $(DOCS)/bin/python || $(BIN)/python -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install $(LOCKED) -r $(LOCKS)/docs.lock
	@touch $@
