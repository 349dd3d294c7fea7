// Binds cuda/gradient.h; for `_core` and `_emulated`.
#pragma once

#include "bindings/gradient.h"
#include "bindings/views.h"
#include "core/validate.h"
#include "cuda/gradient.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>

namespace flashbertscore::bindings {

// Of one side: keys, weight, slope, inverse, own, other of cuda::GradientSide.
using SideAddresses = std::array<std::uintptr_t, 6>;

inline cuda::GradientSide gradient_side(const SideAddresses& at) {
    return {static_cast<int*>(address(at[0])),    address(at[1]),
            static_cast<double*>(address(at[2])), static_cast<double*>(address(at[3])),
            static_cast<index_t>(at[4]),          static_cast<index_t>(at[5])};
}

inline void bind_gradient(pybind11::module_& m) {
    namespace py = pybind11;
    m.def("gradient_workspace", [](const TokenBatch& candidate, const TokenBatch& reference,
                                   std::uintptr_t pairs, index_t count) {
        const PairList list = {static_cast<const index_t*>(address(pairs)), count};
        return cuda::gradient_workspace(candidate, reference, list);
    });
    m.def("gradient_edges",
          [](const TokenBatch& candidate, const TokenBatch& reference, std::uintptr_t pairs,
             index_t count, std::uintptr_t precision, std::uintptr_t recall,
             const AlignmentAddresses& alignment, const GradientAddresses& gradient,
             const SideAddresses& x, const SideAddresses& y, std::uintptr_t workspace,
             std::uintptr_t stream) {
              const py::gil_scoped_release unlocked;
              const PairList list = {static_cast<const index_t*>(address(pairs)), count};
              cuda::gradient_edges(candidate, reference, list, address(precision), address(recall),
                                   alignment_of(alignment), gradient_of(gradient),
                                   {gradient_side(x), gradient_side(y)}, address(workspace),
                                   cuda::current_device(), reinterpret_cast<cuda::Stream>(stream));
          });
    m.def("gradient_rows",
          [](const TokenBatch& own, const TokenBatch& other, const SideAddresses& own_edges,
             const SideAddresses& other_edges, std::uintptr_t own_similarity,
             std::uintptr_t other_similarity, std::uintptr_t order, std::uintptr_t start,
             std::uintptr_t tokens, std::uintptr_t weights, std::uintptr_t stream) {
              const py::gil_scoped_release unlocked;
              cuda::gradient_rows(own, other, gradient_side(own_edges), gradient_side(other_edges),
                                  address(own_similarity), address(other_similarity),
                                  static_cast<const index_t*>(address(order)),
                                  static_cast<const index_t*>(address(start)), address(tokens),
                                  address(weights), cuda::current_device(),
                                  reinterpret_cast<cuda::Stream>(stream));
          });
}

} // namespace flashbertscore::bindings
