# The CUDA kernels: on the CPU (emulate), through the compiler (nvcc), on a device (gpu).
EMULATED_BUILD := build/emulated
EMULATED_SOURCES := $(wildcard csrc/cuda/*.cu) csrc/emulation/block.cpp csrc/emulation/fiber.cpp \
	csrc/emulation/matrix.cpp
EMULATED_HEADERS := $(wildcard csrc/core/*.h csrc/cuda/*.h csrc/cuda/*.cuh csrc/emulation/*.h)
EMULATED_FLAGS := -std=c++20 -g -Wall -Wextra -Wno-unknown-pragmas -Icsrc -DFLASHBERTSCORE_EMULATED
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
$(EMULATED_BUILD)/$(1)/emulation_test: tests/cpp/emulation_test.cpp \
		$(patsubst %,$(EMULATED_BUILD)/$(1)/%.o,$(notdir $(EMULATED_SOURCES)))
	$(CXX) $(EMULATED_FLAGS) $(SANITIZERS_$(1)) $$^ -o $$@
endef
$(foreach build,plain tsan asan,$(eval $(call EMULATED_RULES,$(build))))

.PHONY: emulate emulate-plain emulate-tsan emulate-asan
emulate: emulate-plain emulate-tsan emulate-asan ## Run the CUDA kernels on the CPU, plain and under sanitizers
emulate-plain emulate-tsan emulate-asan: emulate-%: $(EMULATED_BUILD)/%/emulation_test
	$<
