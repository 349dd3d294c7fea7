# One command for each thing a developer does. `make demo` and `make test` start from nothing.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: venv inplace
.DEFAULT_GOAL := help

inplace: ## Build the extension into python/flashbertscore, for PYTHONPATH=python
	$(PYTHON) -c 'import pybind11, sys; print(pybind11.get_cmake_dir())' > /dev/null
	cmake -S . -B build/inplace -G Ninja -DPython_EXECUTABLE=$$(command -v $(PYTHON)) \
	  -Dpybind11_DIR=$$($(PYTHON) -m pybind11 --cmakedir) -DCMAKE_BUILD_TYPE=Release
	cmake --build build/inplace
	cmake --install build/inplace --prefix python
