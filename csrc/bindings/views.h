// A tuple of integers as a TokenBatch, members in their order; an address of 0 is null.
#pragma once

#include "core/views.h"

#include <pybind11/pybind11.h>

#include <array>
#include <cstddef>

namespace pybind11::detail {

// Objects of a bound class, or a std::tuple of pybind11's, cost a short call as much as its kernel.
template <>
struct type_caster<flashbertscore::TokenBatch> {
    PYBIND11_TYPE_CASTER(flashbertscore::TokenBatch, const_name("TokenBatch"));

    bool load(handle source, bool /*convert*/) {
        using flashbertscore::index_t;
        std::array<index_t, 10> at;
        if (!PyTuple_Check(source.ptr()) || PyTuple_GET_SIZE(source.ptr()) != 10) { return false; }
        for (std::size_t i = 0; i < at.size(); ++i) {
            at[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(source.ptr(), static_cast<Py_ssize_t>(i)));
            if (at[i] == -1 && PyErr_Occurred() != nullptr) {
                PyErr_Clear();
                return false;
            }
        }
        value = {reinterpret_cast<const void*>(at[0]),
                 static_cast<flashbertscore::DType>(at[1]),
                 at[2],
                 at[3],
                 at[4],
                 at[5],
                 at[6],
                 reinterpret_cast<const index_t*>(at[7]),
                 reinterpret_cast<const std::uint8_t*>(at[8]),
                 reinterpret_cast<const void*>(at[9])};
        return true;
    }
};

} // namespace pybind11::detail
