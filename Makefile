# `make demo` and `make test` are all the set-up on a fresh machine.
PYTHON ?= python3
VENV   ?= .venv
# A virtual environment of their own: together the engines' packages take half a gigabyte.
ENGINES ?= $(VENV)-engines
# Versions that are installed: torch for the CPU; in CI of all packages (CONSTRAINTS=constraints-ci.txt).
CONSTRAINTS ?= constraints.txt
OLDEST  ?= $(VENV)-oldest
# Newer pytest and pyparsing warn of what the oldest scikit-learn and matplotlib do.
TESTED_WITH := hypothesis 'pyparsing<3.3' 'pytest==8.3.*' pytest-rerunfailures pytest-timeout pytest-xdist pyyaml
BIN    := $(VENV)/bin
# One thread per process: parallelism is over clients, and two OpenMP threads on busy cores are several times slower than one.
export OMP_NUM_THREADS = 1

.DEFAULT_GOAL := help
.PHONY: help demo deploy-demo test test-programs test-engines test-engines-slow test-slow test-gpu weekly torture mutants claims privacy verdicts papers papers-again rivals rivals-page mean-estimation mean-printed byzantine contribution results lint format docs sessions pictures attacks attacks-generated bench bench-check bench-peers agreement same-bits rooms release test-wheel test-oldest notebooks clean

# Targets that a newcomer needs are marked by ##!, all others by ##.
help:  ##! this list
	@echo 'first:'
	@awk -F ':.*##! ' '/^[a-z-]+:.*##! / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo 'further:'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.demo: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '.[data,report]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '.[dev]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo  ##! eight registries of real people: does federating help each of them? (half a minute once installed)
	$(BIN)/coterie compare nhefs

test: $(VENV)/.dev  ##! the fast tests, with warnings as errors (7 minutes on 2 quiet cores, longer beside other work; IN_TURN=all: 20 minutes)
	$(BIN)/python -m pytest tests src/coterie --doctest-modules -n 2 --dist worksteal -q $(if $(IN_TURN),--in-turn $(IN_TURN))

test-programs: $(VENV)/.dev  ## every benchmark at a tiny size, its peers, the experiments and their pages, and the report in a browser where there is one, and the built documentation
	$(BIN)/python -m pytest tests -m 'programs and not slow and not engines and not extras' -n 2 --dist loadfile -q

$(ENGINES)/.ready: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/pip install --quiet --disable-pip-version-check -c $(CONSTRAINTS) -e '.[ci]'
	$(ENGINES)/bin/pip check
	@touch $@

test-engines: $(ENGINES)/.ready  ## the contract of methods and engines on Ray and FLARE, with processes that are killed (a quarter of an hour on 2 cores; IN_TURN=all: twice that)
	$(ENGINES)/bin/python -m pytest tests -m '(engines or extras) and not slow' -q --reruns 1 --reruns-delay 5 $(if $(IN_TURN),--in-turn $(IN_TURN))

test-engines-slow: $(ENGINES)/.ready  ## processes of a FLARE job killed at other moments of a round
	$(ENGINES)/bin/python -m pytest tests -m 'engines and slow' -q

deploy-demo: $(ENGINES)/.ready  ## four hospitals in four processes with mutual TLS (NVIDIA FLARE): the same numbers as in one process (KEEP=1 keeps the kits)
	$(ENGINES)/bin/python tests/deployment.py

test-slow: $(VENV)/.dev  ## kills at every named point and at random moments, and the like
	$(BIN)/python -m pytest tests -m 'slow and not engines and not extras'

weekly: $(VENV)/.dev $(ENGINES)/.ready  ## what takes too long for every change: all tests in turn, slow ones, torture, mutants, oldest packages (hours; ONLY=torture)
	.ci/weekly '$(ONLY)'

test-gpu: $(VENV)/.dev  ## every method on a GPU against the CPU; without a GPU all of it is skipped
	$(BIN)/python -m pytest tests -m gpu

$(OLDEST)/.ready: pyproject.toml tests/oldest.py
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python tests/oldest.py >$(OLDEST)/oldest.txt
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check -c $(OLDEST)/oldest.txt -e '.[data,plot,report,varsel]' $(TESTED_WITH)
	@touch $@

test-oldest: $(OLDEST)/.ready  ## the fast tests with the oldest version of each package that pyproject.toml allows
	$(OLDEST)/bin/python -m pytest tests -n 2 --dist worksteal -q

torture: $(VENV)/.dev  ## interrupted runs, changed worlds, damaged files, mangled settings, odd values, clients' faults: counted into benchmarks/results/torture.json (MINUTES=60)
	PYTHONPATH=tests nice -n 10 $(BIN)/python -m torture --minutes $(or $(MINUTES),60)

mutants: $(VENV)/.dev  ## does a test of a method fail for each term that makes the method what it is, once the term is gone? (15 minutes on 2 quiet cores; ONLY=scaffold; FAST=1: does one of the fast tests?); with ROOM=report N=40: does a test fail for any of 40 changes drawn in a room?
	$(if $(ROOM),PYTHONPATH=tests $(BIN)/python -m room_mutants $(ROOM) --number $(or $(N),40),$(BIN)/python tests/mutants.py --only '$(or $(ONLY),*)' $(if $(FAST),--fast))

claims: $(VENV)/.dev  ## is the answer of each embedded example stable? 21 runs of each with other folds (15 minutes; finished runs are kept)
	$(BIN)/python -m benchmarks.claims

privacy: $(VENV)/.dev  ## does joining pay behind row noise, at which epsilon? generated sites and hospitals, into docs/results/privacy.md (10 minutes on a quiet core)
	$(BIN)/python -m benchmarks.privacy

verdicts: $(VENV)/.dev  ## how often the rule of verdicts errs, by simulation (about 15 minutes; finished federations are kept)
	$(BIN)/python -m benchmarks.verdicts
	$(BIN)/python -m benchmarks.verdicts_of_events

mean-estimation: $(VENV)/.dev  ## the MeritFed papers' plateaus, another seed (about 10 minutes; finished seeds are kept)
	$(BIN)/python benchmarks/run.py mean_estimation
	$(BIN)/python -m experiments.page

mean-printed: $(VENV)/.dev  ## the same with the loss and the steps that are printed, another seed (about half an hour of a core; finished seeds are kept)
	$(BIN)/python benchmarks/run.py mean_printed --minutes '$(or $(MINUTES),60)'

byzantine: $(VENV)/.dev  ## MeritFed's plateaus with 50 attackers among 55 clients, another seed (about 5 minutes; finished seeds are kept)
	$(BIN)/python benchmarks/run.py byzantine
	$(BIN)/python -m experiments.page

contribution: $(VENV)/.dev  ## what contributions say of four hospitals, beside FedAvg retrained on all coalitions (a few minutes; finished seeds are kept)
	$(BIN)/python benchmarks/run.py contribution --minutes '$(or $(MINUTES),30)'

papers: $(VENV)/.dev  ## run what is missing of the papers' experiments, two at a time, and write docs/results.md (MINUTES=30 begins nothing later; ONLY=meritfed-groups-99)
	$(BIN)/python -m experiments --minutes '$(or $(MINUTES),inf)' --only '$(ONLY)' --jobs '$(or $(JOBS),2)'

papers-again: $(VENV)/.dev  ## the same experiments in a second program, plain PyTorch: what is missing of five seeds, and docs/results.md (hours; MINUTES=30 begins nothing later)
	$(BIN)/python -m experiments.independent --minutes '$(or $(MINUTES),inf)'
	$(BIN)/python -m experiments.page

rivals: $(VENV)/.dev  ## run what is missing of all methods on six problems, tuned alike, and write docs/results/rivals.md (about an hour; MINUTES=30 begins nothing later; ONLY=hospitals)
	$(BIN)/python -m experiments.rivals --minutes '$(or $(MINUTES),inf)' --only '$(ONLY)'

rivals-page: $(VENV)/.dev  ## write docs/results/rivals.md and rivals.csv from experiments/results
	$(BIN)/python -m experiments.rivals_page

results: $(VENV)/.dev  ## write docs/results.md, and the papers' pages, from experiments/results and benchmarks/results
	$(BIN)/python -m experiments.page

sessions: $(ENGINES)/.ready  ## run the commands of the README, the tutorials and the how-to pages again, and write what they print; then make notebooks
	$(ENGINES)/bin/python docs/console.py README.md docs/tutorials/*.md docs/howto/*.md

notebooks: $(VENV)/.dev  ## run the notebooks of the tutorials again and write them into examples/ (5 minutes)
	$(BIN)/python docs/notebooks.py

pictures: $(VENV)/.dev  ## the picture of the README, the report of the demo (a minute; needs chromium; RUN=its run directory)
	$(BIN)/python docs/screenshots.py $(RUN)

lint: $(VENV)/.dev  ##! style, types (of the code on the pages, too) and spelling, as pre-commit runs them, wording and density
	$(BIN)/ruff check src tests examples benchmarks experiments docs
	$(BIN)/ruff format --check src tests examples benchmarks experiments docs
	$(BIN)/mypy
	$(BIN)/python docs/user_code.py
	$(BIN)/codespell README.md CONTRIBUTING.md CHANGELOG.md docs src examples benchmarks experiments
	$(BIN)/python -m pytest tests/test_prose.py -q
	$(BIN)/python -m benchmarks.density src/coterie --docs README.md CHANGELOG.md CONTRIBUTING.md docs --gate

format: $(VENV)/.dev  ##! format the code
	$(BIN)/ruff check --fix --quiet src tests examples benchmarks experiments docs
	$(BIN)/ruff format src tests examples benchmarks experiments docs

docs: $(VENV)/.dev  ##! the documentation as a site in site/, with warnings and broken links as errors
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d build/docs docs site

bench: $(VENV)/.dev  ## speed as ratios against the barest loop, what must not grow, and curves of what does; writes benchmarks/results, the table and the pictures of docs/performance.md (an hour)
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/run.py scale growth --anew --minutes 30

bench-check: $(VENV)/.dev  ## is W1, W2, W3 or W5 slower against the barest loop than when benchmarks/results was written, or a start, an evaluation or memory dearer, or what must not grow with names and targets growing? (four minutes, six on another kind of machine)
	$(BIN)/python -m benchmarks.check

bench-peers: $(VENV)/.dev  ## four works against pfl-research, fedjax, FedLab and Flower, which it installs under build/peers (about 45 minutes)
	$(BIN)/python -m benchmarks.peers

agreement: $(VENV)/.dev  ## server rules beside Flower, NVIDIA FLARE, pfl-research, FedLab, ByzFL (needs 2 GB)
	$(BIN)/python -m benchmarks.agreement

attacks: $(VENV)/.dev  ## how many rows a dishonest server finds at a site, by method, model and noise (1 minute)
	$(BIN)/python -m benchmarks.red_team

attacks-generated: $(VENV)/.dev  ## 10,000 generated requests to a site, and 1,000 generated descriptions and replies of one (5 minutes)
	$(BIN)/python -m pytest tests/attacks -m slow -q

same-bits: $(VENV)/.dev  ## does this tree compute the bits of commit BASE, for every method? (2 minutes, 4 where BASE is new; ONLY='attacks/*')
	$(if $(wildcard $(ENGINES)/.ready),$(ENGINES),$(VENV))/bin/python -m benchmarks.same_bits '$(BASE)' --only '$(or $(ONLY),*)'

rooms: $(VENV)/.dev  ## the rooms of the package and the arrows between them
	$(BIN)/python -m benchmarks.rooms

release: $(VENV)/.dev  ## build a release into dist/; refuses one without address, contact, date or the right TAG
	$(BIN)/python docs/release.py --tag '$(TAG)'

test-wheel: $(VENV)/.dev  ## build the wheel, and do six tasks of new users with it in a virtual environment of its own
	bash tests/wheel.sh $(CURDIR) $(abspath $(BIN))/python

clean:  ## remove what was built
	rm -rf $(VENV) $(ENGINES) $(OLDEST) build dist site runs .pytest_cache .mypy_cache .ruff_cache
