# Two commands matter to a newcomer: `make demo` and `make test`. Every target installs what it needs.
VENV    := .venv
PYTHON  ?= python3
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
RUNS    ?= runs
WORKERS ?= 2
PARALLEL := -n $(WORKERS) --dist worksteal  # neighbors share their fixtures; no worker idles at the end

.PHONY: install demo test test-avx2 test-default test-all torture check format web web-check docs bench bench-install quality clean

install: $(STAMP)

# The versions in constraints.txt are the ones tested; torch comes first, so that nothing pulls another build of it.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# Train the lab's character model of Shakespeare for a minute and a half, then let it write.
demo: install
	rm -rf $(RUNS)/demo
	$(BIN)/regard train shakespeare --name demo --runs $(RUNS) --train.seconds 90
	$(BIN)/regard generate $(RUNS)/demo --prompt "ROMEO:" --tokens 400 --seed 1

test: install
	$(THREADS) $(BIN)/pytest $(PARALLEL) -q -m "not slow and not gpu and not browser"

# The tests whose results depend on kernels and rounding, as on another CPU: without AVX-512 (other kernels, no bfloat16
# LSTM), or without any vector instruction that PyTorch chooses itself. What traces, compiles or starts processes is the
# same on every CPU.
NUMERIC := tests/attention tests/laws tests/nn tests/models tests/doctor tests/train/test_precision.py
SAME    := compile or trace or export or flex or grows or command or ranks or describe or docstring or refus
test-avx2: ISA := ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2
test-default: ISA := ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default
test-avx2 test-default: install
	$(ISA) $(THREADS) $(BIN)/pytest $(PARALLEL) -q -m "not slow and not gpu and not browser" -k "not ($(SAME))" $(NUMERIC)

test-all: install
	$(THREADS) HYPOTHESIS_PROFILE=full $(BIN)/pytest $(PARALLEL) -q

# An hour on two quiet cores: kills, damages, full disks, mutations, payloads, requests, power loss; TORTURE=0.05 is short.
TORTURE ?= 1
torture: install
	$(THREADS) $(BIN)/python -m bench.torture --scale $(TORTURE)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	if command -v node >/dev/null; then $(MAKE) web-check; fi

# The page's built files are in the repository; only whoever changes web/ needs Node. Not `npm ci`: it stumbles over
# optional packages for other systems.
web:
	cd web && npm install --no-save --no-audit --no-fund && npm run check && npm run build

web-check:
	cd web && npm run --silent verify

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The documentation site in build/site; strict, so that a broken link or reference is an error.
docs:
	test -x build/docs/bin/mkdocs || $(PYTHON) -m venv build/docs
	build/docs/bin/pip install --quiet --disable-pip-version-check 'mkdocs-material>=9.5' 'mkdocstrings[python]>=0.26' 'ruff>=0.8'
	build/docs/bin/mkdocs build

# Peers are installed only for this.
bench-install: install
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -r bench/requirements.txt

bench: bench-install
	OMP_NUM_THREADS=2 $(BIN)/python -m bench.training --device cpu --settings small,large --rounds 15
	OMP_NUM_THREADS=2 $(BIN)/python -m bench.generation
	OMP_NUM_THREADS=2 $(BIN)/python -m bench.translation

# Half an hour: three contenders, three seeds, three minutes each.
quality: bench-install
	OMP_NUM_THREADS=2 $(BIN)/python -m bench.quality

clean:
	rm -rf $(VENV) web/node_modules build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
