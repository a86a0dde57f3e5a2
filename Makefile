# Each target is the plain command it names. The first one sets up .venv; later ones start in seconds.
#
#   make install                  set up .venv alone
#   make test                     everything: unit tests, exact laws, compile gate
#   make book                     build the book, print where to open it (the model is fetched once)
#   make serve                    build it, then serve it on localhost
#   make faults                   plant every fault, show which tests catch it
#   make faults-own               the same, each against the test named for it alone
#   make laws                     the law of every rule and backend, as a table
#   make grids                    the kernels' tests with every cell of the grids in the interpreter
#   make stress                   50 000 engine steps under random load, every request checked alone
#   make atlas                    the table bug-atlas row -> tests, or why not yet
#   make lint                     ruff
#   make test-next-triton         the Triton kernels' tests again, on a newer Triton
#   make bench                    time rules, engine and decoding on this machine, half an hour
#
# PyPI's Linux build of torch carries CUDA, a download of several GB. For a laptop without a GPU:
#   make test TORCH_INDEX=https://download.pytorch.org/whl/cpu

PYTHON ?= $(shell command -v python3.11 || command -v python3)
TORCH_INDEX ?=
NEXT_TRITON := 3.9.0

VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
NEXT := .triton-$(NEXT_TRITON)
PYTEST := $(RUN) -m pytest -n auto --dist loadfile

.PHONY: install test book serve laws faults faults-own grids stress atlas lint test-next-triton bench clean

test: $(INSTALLED)
	$(PYTEST)

install: $(INSTALLED)

book: $(INSTALLED)
	$(RUN) book/build.py

serve: $(INSTALLED)
	$(RUN) book/build.py --serve

laws: $(INSTALLED)
	$(RUN) benchmarks/laws.py

faults: $(INSTALLED)
	$(RUN) -m specedu.grade.matrix

faults-own: $(INSTALLED)
	$(RUN) -m specedu.grade.matrix --own

stress: $(INSTALLED)
	$(RUN) -m pytest tests/test_stress.py --stress-steps 50000 -s --durations 0

atlas: $(INSTALLED)
	$(RUN) tests/support/atlas_table.py

grids: $(INSTALLED)
	$(PYTEST) tests/kernels --interpreter-share 1

lint: $(INSTALLED)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

test-next-triton: $(INSTALLED) $(NEXT)/.installed
	PYTHONPATH=$(NEXT) $(PYTEST) tests/kernels --interpreter-share 0.1 -k "not the_twin and not torch"

bench: $(INSTALLED)
	$(RUN) benchmarks/rules.py
	$(RUN) benchmarks/host.py
	$(RUN) benchmarks/decode.py single
	$(RUN) benchmarks/decode.py verify
	$(RUN) benchmarks/decode.py rows
	$(RUN) benchmarks/decode.py many

$(INSTALLED): requirements.txt pyproject.toml
	@echo "Installing into $(VENV): 2 GB with a CPU build of torch, several GB more with PyPI's CUDA build"
	@echo "(make TORCH_INDEX=https://download.pytorch.org/whl/cpu takes the CPU build)"
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -r requirements.txt
	$(RUN) -m pip install --no-deps --no-build-isolation --editable .
	touch $@

$(NEXT)/.installed: $(INSTALLED)
	$(RUN) -m pip install --no-deps --upgrade --target $(NEXT) triton==$(NEXT_TRITON)
	touch $@

clean:
	rm -rf $(VENV) $(NEXT) _build
