# Two commands do all the set-up on a machine with Python 3.10 to 3.13 and make:
#   make demo    build, verify and read a dataset from a small corpus
#   make test    run the tests
PYTHON ?= python3
VENV   ?= .venv
DEMO   := .demo
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test test-slow test-cluster test-faults faults lint format bench schemas golden clean

help:
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 10) <= sys.version_info < (3, 14) else "pileshard needs Python 3.10 to 3.13, $(PYTHON) is %d.%d: set PYTHON=python3.11, for example" % sys.version_info[:2])'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo 'no virtual environment could be made: install venv for $(PYTHON) (Debian: apt-get install python3-venv)' >&2; exit 1; }

$(VENV)/.demo: pyproject.toml tests/constraints.txt | $(BIN)/python
	@echo 'installing pileshard, Apache Beam, TensorFlow and the fast tokenizer into $(VENV) (once, some minutes)'
	@$(PIP) --constraint tests/constraints.txt --editable '.[beam,fast,tensorflow-cpu]'
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	@echo 'installing what the tests need, PyTorch among it (5 GB), into $(VENV)'
	@$(PIP) --constraint tests/constraints.txt --editable '.[beam,dask,fast,tensorflow-cpu,torch,s3,gcs,azure,http,stats,test,lint]'
	@$(BIN)/python -m pip --disable-pip-version-check check
	@touch $@

demo: $(VENV)/.demo ## build, verify and read a dataset from the small corpus in tests/data/demo
	@rm -rf $(DEMO) && mkdir $(DEMO)
	@$(BIN)/python tests/demo/demo.py $(DEMO)

test: $(VENV)/.test ## run the tests
	$(BIN)/python -m pytest -m 'not slow' $(ARGS)

test-slow: $(VENV)/.test ## run the exhaustive suites too (an hour)
	$(BIN)/python -m pytest $(ARGS)

test-cluster: $(VENV)/.test ## three hosts as namespaces: kill hosts, drivers and storage at random moments (root, /dev/fuse)
	$(BIN)/python -m pytest tests/cluster $(ARGS)

faults: $(VENV)/.test ## inject each kind of fault; a table of what verify detects and repair mends
	$(BIN)/python tests/audit/fault_table.py

test-faults: $(VENV)/.test ## let each kind of storage fault hit builds at random operations; a table of how they end
	$(BIN)/python -m tests.cluster.storage_faults

lint: $(VENV)/.test ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.test ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schemas: $(VENV)/.test ## write the JSON Schemas anew from the code
	$(BIN)/python -m pileshard.format.schema schemas

bench: $(VENV)/.test ## measure what the README states
	for name in build_speed parts_speed cluster_simulation planning_scale stats_speed verify_speed reader_speed reader_startup torch_speed remote_speed; do \
	  echo "== $$name"; $(BIN)/python -m tests.benchmarks.$$name || exit 1; done

clean: ## remove environments and what the demo made
	rm -rf $(VENV) $(DEMO)
