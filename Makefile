# `make run` and `make test` do all the set-up themselves; `make help` lists the rest.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SEEDS  ?= 200
# Tests mostly wait, for processes and clients: four files at once, in the order of tests/conftest.py. One of them are the
# seeds of the simulator, with low priority. What fails is run once more at the end, alone; if it passes then, a line
# `flaky: <tests>` names it.
# pytest keeps what it compiled of the tests, also where the shell says otherwise: each process would compile all of them.
# The plugin of schemathesis takes a second of each process to load, and the tests use the library alone.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python tools/run_tests.py -p no:schemathesis -n 4 --dist loadfile --no-loadscope-reorder
SEED   ?= 1

.DEFAULT_GOAL := help
.PHONY: help install install-dev compile dist deb run demo check release-check docs docs-serve unit test test-all test-compiled clients simulate fuzz bench bench-tier bench-mirror bench-spark clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit("Millstream needs Python 3.11 or newer; this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	touch $@

# Each is more than the one before it, and is installed at once. Nothing is compiled here: `compile` does that, in place
# and only where something changed.
INSTALL := MILLSTREAM_COMPILED=refuse $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable
SOURCES := $(VENV)/.made pyproject.toml constraints.txt

$(VENV)/.installed: $(SOURCES)
	$(INSTALL) '.[compile,gateway,tier]'
	$(BIN)/python -m compileall -q src
	touch $@

$(VENV)/.installed-spark: $(SOURCES)
	$(INSTALL) '.[compile,gateway,spark,lake,tier]'
	$(BIN)/python -m compileall -q src
	touch $(VENV)/.installed $@

# What packages are built with.
$(VENV)/.installed-build: $(SOURCES)
	$(INSTALL) '.[compile]' build
	touch $@

# Dependency groups need pip 25.1; a venv has the pip of its Python.
$(VENV)/.pip: $(VENV)/.made
	$(BIN)/python -c 'import pip; assert [int(part) for part in pip.__version__.split(".")[:2]] >= [25, 1]' 2>/dev/null \
		|| $(BIN)/pip install --quiet --disable-pip-version-check 'pip>=25.1'
	touch $@

$(VENV)/.installed-dev: $(SOURCES) $(VENV)/.pip
	$(INSTALL) '.[compile,gateway,spark,lake,tier]' --group dev
	$(BIN)/python -m compileall -q src
	touch $(VENV)/.installed $(VENV)/.installed-spark $(VENV)/.installed-build $@

install: $(VENV)/.installed $(VENV)/.compiled  ## Make .venv and install Millstream into it, with console, REST and schema registry

install-dev: $(VENV)/.installed-dev $(VENV)/.compiled  ## The same, with everything that tests and benchmarks need

# The modules of the request path and the inner loops (ADR 36). Where there is no C compiler, or MILLSTREAM_COMPILED=refuse,
# a line says that plain Python runs. Tests and packages do not fall back like that: with a compiler the build must succeed.
COMPILED := setup.py $(shell find src/millstream -path src/millstream/compilation.py -o -name "*.pyx" -o -name "*.pxd" \
	-o -path "src/millstream/common/*.py*" -o -path "src/millstream/config/*.py" -o -path "src/millstream/formats/*.py*" \
	-o -path "src/millstream/node/*.py*" | grep -v __pycache__)
FORM := $(or $(MILLSTREAM_COMPILED),$(if $(shell command -v $(firstword $(CC))),require,auto))

$(VENV)/.compiled: $(VENV)/.made constraints.txt $(COMPILED)
	@echo 'Compiling the modules of the request path, those that changed (two minutes the first time)'
	$(BIN)/python -W ignore setup.py --quiet build_ext --inplace
	touch $@

compile: install-dev  ## Compile the modules of the request path that changed: until then plain Python runs in their place
	MILLSTREAM_COMPILED=$(FORM) $(BIN)/python -W ignore setup.py --quiet build_ext --inplace

# The wheel is built from the source distribution, so both are complete. MILLSTREAM_COMPILED=refuse makes one for every
# machine, in plain Python.
dist: $(VENV)/.installed-build  ## Build the source distribution and a wheel with the compiled modules into dist/
	rm -rf dist
	MILLSTREAM_COMPILED=$(FORM) $(BIN)/python -m build --no-isolation --outdir dist .

deb: dist  ## Build the Debian package into dist/, for the Debian of this machine
	$(BIN)/python -m tools.debian_package dist/*.whl --output dist

run: install  ## Start a broker on 127.0.0.1:9092 with its data in ./millstream-data, and its console beside it
	@echo 'It will say where it listens, which address to open in a browser, and what to try in another terminal.'
	@echo 'The commands are in $(BIN): call them as $(BIN)/millstream.'
	$(BIN)/millstream serve

demo: $(VENV)/.installed-spark $(VENV)/.compiled  ## A broker, generated orders, a Spark pipeline over them, and its result as a chart; ends by itself
	$(BIN)/millstream demo

check: $(VENV)/.installed-dev  ## Format, lint, words, types, the direction of imports, security mistakes, and the docs site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell -D - -D tools/words.txt src docs README.md CONTRIBUTING.md
	$(BIN)/codespell -D tools/words.txt -L nobody --skip "tools/words.txt,*.json,*.svg,__pycache__" tests benchmarks tools deploy
	$(BIN)/mypy
	$(BIN)/python tools/check_compiled.py
	$(BIN)/python tools/check_order.py
	$(BIN)/lint-imports --no-cache
	$(BIN)/bandit -q -c pyproject.toml -r src
	$(BIN)/python -m pip check
	$(DOCS) build --quiet

# Without the variable, the theme prints an advertisement of its successor (ADR 51).
DOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

docs: $(VENV)/.installed-dev  ## Build the docs site into build/site; a broken link, or a page that is not in the navigation, is an error
	$(DOCS) build --quiet
	@echo 'Open build/site over HTTP: $(BIN)/python -m http.server --directory build/site 8000 --bind 127.0.0.1'

docs-serve: $(VENV)/.installed-dev  ## Serve the docs site on 127.0.0.1:8000, and build it again when a page changes
	$(DOCS) serve

release-check: $(VENV)/.made  ## What is missing before this version can be published (docs/releases.md)
	$(BIN)/python tools/check_release.py

clients: $(VENV)/.installed-dev  ## Install the Kafka clients the tests talk with (kcat, kafkajs, Java, franz-go)
	$(BIN)/python -m tools.install_test_clients

# Always in plain Python: after an edit there is nothing to wait for.
UNIT := MILLSTREAM_EXAMPLES=quick $(BIN)/python -m pytest -q -p no:schemathesis -n 2 --dist loadfile -m 'not slow'

unit: $(VENV)/.installed-dev  ## The tests that need no process, no socket and no other program, in plain Python (a minute on two cores)
	MILLSTREAM_COMPILED=refuse $(UNIT) tests/unit

# Beside the run over the compiled modules, if there are any: the unit tests of packages with such modules, and all tests
# that replace parts of them (marked `plain`). Other packages are in plain Python in both runs. One run for all: each
# process of pytest first collects what it is given.
PLAIN_ROOMS := $(addprefix tests/,unit/common unit/formats unit/node unit/tools integration/simulator)
define PLAIN_PART
	MILLSTREAM_COMPILED=refuse MILLSTREAM_EXAMPLES=quick $(PYTEST) -n 2 -m '(both_forms or plain) and not slow' $(PLAIN_ROOMS)
endef
IS_COMPILED := $(filter require,$(FORM))

# The checks use one core, and so does the compilation: both at once.
PREPARE := $(MAKE) --jobs 2 --output-sync=line --no-print-directory check clients compile

test: $(VENV)/.installed-dev  ## All checks and tests (about 25 minutes on two cores); ROOM=system/lake runs those in tests/system/lake
	$(PREPARE)
	$(if $(IS_COMPILED),$(if $(ROOM),,$(PLAIN_PART)))
	MILLSTREAM_COMPILED=$(FORM) MILLSTREAM_EXAMPLES=quick $(PYTEST) -m 'not slow' $(ROOM:%=tests/%)

test-all: $(VENV)/.installed-dev  ## The same, with the tests that take minutes and all examples of hypothesis; all of it compiled and in plain Python
	$(PREPARE)
	MILLSTREAM_COMPILED=$(FORM) $(PYTEST) $(ROOM:%=tests/%)
	$(if $(IS_COMPILED),MILLSTREAM_COMPILED=refuse $(PYTEST) $(ROOM:%=tests/%))

test-compiled: compile  ## The unit tests over the compiled modules; those marked plain replace parts of them
	MILLSTREAM_COMPILED=require $(UNIT) tests/unit

simulate: install  ## Run SEEDS=200 simulated clusters through faults; SEED=1 is the first
	$(BIN)/millstream simulate --seed $(SEED) --seeds $(SEEDS)

fuzz: install-dev  ## Send a million mutated frames to a broker
	$(BIN)/python -m tests.system.fuzz.frames --frames 1000000

bench: install-dev  ## Measure Millstream and Apache Kafka side by side; writes docs/benchmarks/
	$(BIN)/python -m benchmarks.compare

bench-tier: install-dev  ## Measure tiered storage on an S3 server of this machine, and a branch of 100 GB
	$(BIN)/python -m benchmarks.tier
	$(BIN)/python -m benchmarks.branch

bench-mirror: install-dev  ## Measure a mirror link beside MirrorMaker 2
	$(BIN)/python -m benchmarks.mirror

bench-spark: install-dev  ## Measure our Spark source and sink beside Spark's own Kafka connector
	$(BIN)/python -m benchmarks.spark

clean:  ## Remove what make made
	rm -rf $(VENV) .cache build dist src/*.egg-info src/*.so src/millstream/_compiled.*
	find src -name '*.so' -delete
