# make demo   set up, then embed examples/sentences.txt
# make explore  show the explorer in a browser, where the engine and the model run: nothing is installed
# make test   run all tests, or TESTS="tests/text -k english" some      make quick   skip the slow ones, and those inside other libraries
# make check  lint, check spelling and types      make coverage  run all tests and show which branches no test takes
# make wheel  build the wheel with compiled kernels, and test it in an empty environment without a compiler; CC may name another compiler to build it with
# make wheels  build a wheel with compiled kernels for every system: Linux, macOS and Windows on x86-64 and Arm, with zig as cross compiler
# make wasm   compile the engine to WebAssembly for packages/js, with zig: after changes of its C files
# make release-check  everything before a release but the upload: versions, changelog and tag; build the distributions and try them; build the site
# make campaign  damage files, interrupt commands, fill disks, ask the server (an hour, as root on Linux); PARTS="mutants disk" runs some parts, SCALE=0.01 less of each
# make fuzz  fuzz every reader of foreign files and the server's bodies, guided by coverage, for MINUTES=5 each; FUZZ="hdf5 archive" some
# make sanitize  run the C functions under sanitizers, guard pages and valgrind (five minutes); PARTS="address threads" runs some parts, SECONDS_EACH=600 more random calls
# make integrations  test elmokit inside each library that it integrates with, each in an environment of its own (noxfile.py)
# make docs   build the documentation site into site/; warnings are errors      make docs-serve  show it while you edit
# make weight  report how large and how dense the code is, by folder (.ci/weight)
# make bench  measure tokens/s of every backend: SENTENCES=file, PEER="--peer-python ... --peer-script ..." (benchmarks/inference.py)
# Where a target installs PyTorch, TORCH says which: cpu (200 MB), cu130 or another folder of PyTorch's own index, or nothing: what pip
# finds elsewhere. On Linux, PyPI has the build with CUDA (3 GB).

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SENTENCES ?= examples/sentences.txt
BENCH ?= bench
TORCH ?= cpu
TORCH_INDEX = https://download.pytorch.org/whl
TESTS ?=
PARTS ?=
SCALE ?= 1
FUZZ ?=
MINUTES ?= 5
SECONDS_EACH ?= 10
# Not quiet: without pip's progress, nothing would be printed for minutes.
PIP = $(BIN)/pip install --disable-pip-version-check
# PyTorch is not locked: which file it is depends on the system, and on CPUs, CUDA or ROCm. What it needs besides CUDA is.
PIP_TORCH = $(PIP) --constraint constraints.txt torch
ifeq ($(TORCH),)
INSTALL_TORCH = $(PIP_TORCH)
else
INSTALL_TORCH = $(PIP_TORCH) --retries 2 --index-url $(TORCH_INDEX)/$(TORCH) || { \
	echo "PyTorch's index has no PyTorch for this machine, or cannot be reached: taking the build that pip finds elsewhere."; \
	$(PIP_TORCH); }
endif
# Nothing but the files that requirements/ has the hashes of (.ci/lock).
LOCKED = $(PIP) --require-hashes --requirement requirements
# The lock has all that it needs, the build tools too.
EDITABLE = $(PIP) --no-deps --no-build-isolation --editable .
CORES = $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
# Bytecode is kept even where the environment says not to: otherwise every process that a test starts would compile elmokit
# again, and each worker all tests.
# One thread for each process, because threads of several processes would compete for the cores.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist worksteal --numprocesses
# One process more than there are cores: some slow tests wait for a server to stop or for a thread to sleep.
ALL_TESTS = $(PYTEST) $(shell expr $(CORES) + 1)

.PHONY: demo explore test quick coverage check campaign sanitize fuzz docs docs-serve wheel wheels wasm release-check integrations bench weight clean

demo: $(VENV)/installed
	$(BIN)/python examples/demo.py demo.hdf5
	@echo "To use the command elmokit in this shell: source $(BIN)/activate"

explore:
	$(PYTHON) docs/make_try.py

test: $(VENV)/installed-dev
	$(ALL_TESTS) $(TESTS)

quick: $(VENV)/installed-dev
	$(PYTEST) $(CORES) -m "not slow" --ignore tests/integrations

coverage: $(VENV)/installed-dev
	$(ALL_TESTS) --cov --cov-report=term --cov-report=html

# All of its parts run, whichever fails.
check: $(VENV)/installed-dev
	@failed=; \
	for part in "ruff check ." "ruff format --check ." codespell mypy; do \
		echo "$$part"; \
		$(BIN)/$$part || failed="$$failed; $$part"; \
	done; \
	if [ "$$failed" ]; then echo "Failed: $${failed#; }"; exit 1; fi

docs: $(VENV)/installed-docs
	$(BIN)/mkdocs build --strict
	$(BIN)/python docs/check_search.py site

docs-serve: $(VENV)/installed-docs
	$(BIN)/mkdocs serve

campaign: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.campaign --scale $(SCALE) $(PARTS)

sanitize: $(VENV)/installed-dev
	$(BIN)/python -m tests.sanitize --seconds $(SECONDS_EACH) $(PARTS)

fuzz: $(VENV)/installed-fuzz
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(FUZZ)

wheel:
	PYTHON=$(PYTHON) .ci/wheel dist

wheels:
	PYTHON=$(PYTHON) .ci/wheels dist

wasm: $(VENV)/installed
	$(PIP) $$($(BIN)/python packages/js/build.py --zig-package)
	$(BIN)/python packages/js/build.py

release-check: $(VENV)/installed-dev
	$(BIN)/python -m pytest -q tests/project/test_release.py tests/project/test_supply_chain.py
	@version=$$($(BIN)/python -c "from elmokit.version import __version__; print(__version__)"); \
	if git rev-parse --verify --quiet "refs/tags/v$$version"; then echo "The tag v$$version exists already."; exit 1; fi
	PYTHON=$(PYTHON) .ci/release dist
	PYTHON=$(PYTHON) .ci/without-pytorch dist/elmokit-*-py3-none-any.whl
	$(MAKE) docs

integrations: $(VENV)/installed-dev
	$(BIN)/nox

bench: $(VENV)/installed-dev
	$(BIN)/python benchmarks/inference.py $(SENTENCES) --work $(BENCH) $(PEER)
	$(BIN)/python benchmarks/inference.py --report --work $(BENCH) --figure $(BENCH)/speed

weight:
	$(PYTHON) .ci/weight

clean:
	rm -rf $(VENV) demo.hdf5 vectors.hdf5 dist site

# pip would refuse an older Python only after it has installed everything else.
$(VENV)/pip:
	@if ! $(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11, 4))"; then \
		echo "elmokit needs Python 3.11.4 or newer, which $(PYTHON) is not. Name another one: make PYTHON=python3.12"; \
		exit 1; \
	fi
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/installed: pyproject.toml requirements/core.txt | $(VENV)/pip
	@echo "Installing elmokit into $(VENV)."
	$(LOCKED)/core.txt
	$(EDITABLE)
	@touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt requirements/dev.txt | $(VENV)/installed
	@echo "Installing PyTorch and the other libraries that the tests need. The first time, this takes a few minutes."
	$(LOCKED)/dev.txt
	$(INSTALL_TORCH)
	$(EDITABLE)
	$(BIN)/pip check
	@touch $@

# Not an extra: it has no wheel for every system that the tests run on.
$(VENV)/installed-fuzz: constraints.txt | $(VENV)/installed-dev
	$(PIP) --constraint constraints.txt atheris
	@touch $@

$(VENV)/installed-docs: pyproject.toml constraints.txt requirements/docs.txt | $(VENV)/installed
	@echo "Installing PyTorch, which the page of settings imports, and the libraries that build the documentation."
	$(LOCKED)/docs.txt
	$(INSTALL_TORCH)
	$(EDITABLE)
	$(BIN)/pip check
	@touch $@
