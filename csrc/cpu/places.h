// Where maxima are: integers that travel as the bits of a T (isa.h). Included by files with an
// instruction set's flags, so all of it stays in their unnamed namespace.
#pragma once

#include "cpu/addresses.h"
#include "cpu/isa.h"

namespace flashbertscore {
namespace {

// A place as the bits of a T, and in every lane of a vector.
template <class V>
typename V::reg broadcast_place(index_t place) {
    const Place<typename V::T> bits = static_cast<Place<typename V::T>>(place);
    typename V::T value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return V::broadcast(value);
}

// The lowest of the places, each plus its lane, whose value is `most`.
template <class T, index_t lanes>
Place<T> lowest_place(const T (&value)[lanes], const Place<T> (&place)[lanes], T most) {
    constexpr Place<T> none = static_cast<Place<T>>(~(Place<T>{1} << (8 * sizeof(T) - 1)));
    Place<T> lowest = none;
    for (index_t lane = 0; lane < lanes; ++lane) {
        const Place<T> here =
            value[lane] == most ? place[lane] + static_cast<Place<T>>(lane) : none;
        lowest = here < lowest ? here : lowest;
    }
    return lowest;
}

} // namespace
} // namespace flashbertscore
