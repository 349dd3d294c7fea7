# The CUDA kernels: on the CPU (emulate), through the compiler (nvcc), on a device (gpu).
EMULATED_BUILD := build/emulated
EMULATED_SOURCES := $(wildcard csrc/cuda/*.cu) csrc/emulation/block.cpp csrc/emulation/fiber.cpp \
	csrc/emulation/matrix.cpp
EMULATED_HEADERS := $(wildcard csrc/core/*.h csrc/cuda/*.h csrc/cuda/*.cuh csrc/emulation/*.h)
EMULATED_FLAGS := -std=c++20 -g -Wall -Wextra -Wno-unknown-pragmas -ffp-contract=off -Icsrc \
	-DFLASHBERTSCORE_EMULATED
TEST_HEADERS := tests/cpp/matching.h tests/cpp/groups.h
TEST_GROUPS := matches_groups gradient_groups
SANITIZERS_plain := -O2
SANITIZERS_tsan := -O1 -fsanitize=thread -DFLASHBERTSCORE_TSAN
SANITIZERS_asan := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all

# $(call EMULATED_RULES,build): objects and test program of one build.
define EMULATED_RULES
$(EMULATED_BUILD)/$(1)/%.cu.o: csrc/cuda/%.cu $(EMULATED_HEADERS)
	@mkdir -p $$(@D)
	$(CXX) $(EMULATED_FLAGS) $(SANITIZERS_$(1)) -x c++ -c $$< -o $$@
$(EMULATED_BUILD)/$(1)/%.cpp.o: csrc/emulation/%.cpp $(EMULATED_HEADERS)
	@mkdir -p $$(@D)
	$(CXX) $(EMULATED_FLAGS) $(filter-out -fsanitize=thread,$(SANITIZERS_$(1))) -c $$< -o $$@
$(EMULATED_BUILD)/$(1)/%.o: tests/cpp/%.cpp $(TEST_HEADERS) $(EMULATED_HEADERS)
	@mkdir -p $$(@D)
	$(CXX) $(EMULATED_FLAGS) $(SANITIZERS_$(1)) -c $$< -o $$@
$(EMULATED_BUILD)/$(1)/%_test: $(EMULATED_BUILD)/$(1)/%_test.o \
		$(patsubst %,$(EMULATED_BUILD)/$(1)/%.o,$(notdir $(EMULATED_SOURCES)))
	$(CXX) $(EMULATED_FLAGS) $(SANITIZERS_$(1)) $$^ -o $$@
$(EMULATED_BUILD)/$(1)/kernel_test: $(TEST_GROUPS:%=$(EMULATED_BUILD)/$(1)/%.o)
endef
$(foreach build,plain tsan asan,$(eval $(call EMULATED_RULES,$(build))))

# Objects stay: `make faults` links broken kernels against them, and make would remove what only
# chains of pattern rules name.
.SECONDARY:

.PHONY: emulate emulate-plain emulate-asan emulate-tsan faults
emulate: emulate-plain emulate-asan emulate-tsan ## Run the CUDA kernels on the CPU, plain and under sanitizers
emulate-plain emulate-asan: emulate-%: $(EMULATED_BUILD)/%/plan_test $(EMULATED_BUILD)/%/kernel_test
	$(EMULATED_BUILD)/$*/plan_test
	$(EMULATED_BUILD)/$*/kernel_test
# A fraction of the speed: once through every kernel, and the rules. Races depend on no value.
emulate-tsan: emulate-%: $(EMULATED_BUILD)/%/kernel_test
	TSAN_OPTIONS=halt_on_error=1 $< tour
	TSAN_OPTIONS=halt_on_error=1 $< rules
	TSAN_OPTIONS=halt_on_error=1 $< scales bf16
	TSAN_OPTIONS=halt_on_error=1 $< cases bf16

faults: $(foreach build,plain tsan asan,$(EMULATED_BUILD)/$(build)/kernel_test) ## Break the kernels on purpose; fail if a build of `make emulate` does not see it
	$(PYTHON) tests/inject_faults.py $(EMULATED_BUILD) "$(CXX) $(filter-out -I%,$(EMULATED_FLAGS))" \
	  $(foreach build,plain tsan asan,"$(build)=$(SANITIZERS_$(build))")

# The same test program for the device at hand, for `make gpu`.
NVCC ?= nvcc
GPU_ARCHITECTURE ?= native
build/gpu/%.o: csrc/cuda/%.cu $(EMULATED_HEADERS)
	@mkdir -p $(@D)
	$(NVCC) -std=c++20 -O3 --fmad=false -lineinfo -arch=$(GPU_ARCHITECTURE) -Icsrc -c $< -o $@
build/gpu/%.o: tests/cpp/%.cpp $(TEST_HEADERS) $(EMULATED_HEADERS)
	@mkdir -p $(@D)
	$(NVCC) -std=c++20 -O2 -Icsrc -c $< -o $@
build/gpu/kernel_test: $(patsubst csrc/cuda/%.cu,build/gpu/%.o,$(wildcard csrc/cuda/*.cu)) \
		$(patsubst %,build/gpu/%.o,kernel_test $(TEST_GROUPS))
	$(NVCC) -arch=$(GPU_ARCHITECTURE) $^ -o $@

.PHONY: gpu
gpu: ## On a machine with a GPU: build, test, measure, check with compute-sanitizer
	bash benchmarks/gpu.sh

.PHONY: nvcc
nvcc: $(VENV)/.packages ## Compile the kernels for every GPU target; fail on spills or a kernel without tensor cores
	$(BIN)/python tests/nvcc_report.py build/nvcc
