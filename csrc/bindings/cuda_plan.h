// Binds cuda/plan.h; used by `_core`, and by `_emulated` for the same kernels on a CPU.
#pragma once

#include "bindings/gradient.h"
#include "bindings/views.h"
#include "core/validate.h"
#include "cuda/plan.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>

namespace flashbertscore::bindings {

inline std::unique_ptr<cuda::Plan> make_plan(TokenBatch candidate, index_t candidate_rows,
                                             TokenBatch reference, index_t reference_rows,
                                             std::uintptr_t pairs, index_t count, bool places) {
    const PairList list = {reinterpret_cast<const index_t*>(pairs), count};
    const pybind11::gil_scoped_release unlocked;
    // The values of weights are on the device; everything else that can be wrong is here.
    TokenBatch x = candidate, y = reference;
    x.weights = y.weights = nullptr;
    validate(x, candidate_rows, y, reference_rows, list);
    return std::make_unique<cuda::Plan>(candidate, reference, list, cuda::current_device(),
                                        cuda::Limits{}, places);
}

inline void run_plan(const cuda::Plan& plan, std::uintptr_t precision, std::uintptr_t recall,
                     std::uintptr_t f1, std::uintptr_t workspace, std::uintptr_t stream,
                     const AlignmentAddresses& alignment) {
    const auto at = [](std::uintptr_t address) { return reinterpret_cast<void*>(address); };
    const pybind11::gil_scoped_release unlocked;
    plan.run({at(precision), at(recall), at(f1)}, at(workspace),
             reinterpret_cast<cuda::Stream>(stream), alignment_out(alignment));
}

inline void bind_plan(pybind11::module_& m) {
    namespace py = pybind11;
    // Local: `_core` and `_emulated` each have their own.
    py::class_<cuda::Plan>(m, "CudaPlan", py::module_local())
        .def(py::init(&make_plan), py::arg("candidate"), py::arg("candidate_rows"),
             py::arg("reference"), py::arg("reference_rows"), py::arg("pairs"),
             py::arg("pair_count"), py::arg("places") = false)
        .def_static("why_unusable", &cuda::Plan::why_unusable)
        .def_property_readonly("workspace_bytes", &cuda::Plan::workspace_bytes)
        .def("run", &run_plan, py::arg("precision"), py::arg("recall"), py::arg("f1"),
             py::arg("workspace"), py::arg("stream"), py::arg("alignment") = AlignmentAddresses{});
}

} // namespace flashbertscore::bindings
