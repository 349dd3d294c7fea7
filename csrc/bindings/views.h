// A tuple of integers as a TokenBatch, its members in their order; an address of 0 is null.
#pragma once

#include "core/views.h"

#include <pybind11/pybind11.h>

#include <cstdint>
#include <tuple>

namespace pybind11::detail {

// An object of a class of its own costs a short call twice what its kernel takes.
template <>
struct type_caster<flashbertscore::TokenBatch> {
    PYBIND11_TYPE_CASTER(flashbertscore::TokenBatch, const_name("TokenBatch"));

    bool load(handle source, bool convert) {
        using flashbertscore::index_t;
        using Members = std::tuple<std::uintptr_t, int, index_t, index_t, index_t, index_t, index_t,
                                   std::uintptr_t, std::uintptr_t, std::uintptr_t>;
        make_caster<Members> members;
        if (!members.load(source, convert)) { return false; }
        const auto [data, dtype, documents, dim, row_stride, document_stride, width, offsets, mask,
                    weights] = cast_op<Members>(members);
        value = {reinterpret_cast<const void*>(data),
                 static_cast<flashbertscore::DType>(dtype),
                 documents,
                 dim,
                 row_stride,
                 document_stride,
                 width,
                 reinterpret_cast<const index_t*>(offsets),
                 reinterpret_cast<const std::uint8_t*>(mask),
                 reinterpret_cast<const void*>(weights)};
        return true;
    }
};

} // namespace pybind11::detail
