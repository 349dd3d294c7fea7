// Python module `_emulated`: the CUDA kernels on CPU threads, for tests.
#include "bindings/cuda_gradient.h"
#include "bindings/cuda_plan.h"

PYBIND11_MODULE(_emulated, m) {
    m.doc() = "FlashBERTScore's CUDA kernels, run by csrc/emulation on the CPU. For tests.";
    flashbertscore::bindings::bind_plan(m);
    flashbertscore::bindings::bind_gradient(m);
}
