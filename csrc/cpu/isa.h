// What an instruction set brings: five small functions per computed type. The sweep over tiles
// (greedy_match.cpp) is written once and calls them through this table.
#pragma once

#include "core/views.h"

namespace flashbertscore {

// Rows of tokens, dim elements each, `stride` elements apart.
template <class T>
struct Rows {
    const T* data;
    index_t stride;
    const T* operator[](index_t i) const { return data + i * stride; }
};

// T: the type computed in, float or double. A scale is the inverse norm of a token: maxima are
// taken of <x_i, y_j> * scale of the other side, and the token's own scale, one positive factor for
// all its similarities, is left to the caller.
template <class T>
struct Kernels {
    index_t rows;    // R: most rows of x that `match` takes
    index_t columns; // C: columns of a packed panel

    // Sum of squares of one row: exact to a few units of T's precision, overflow and all.
    double (*sum_of_squares)(const void* row, DType dtype, index_t dim);

    // out[k] = row[k].
    void (*convert)(const void* row, DType dtype, index_t dim, T* out /* [dim] */);

    // panel[k, c] = rows[min(c, count - 1), k]: missing columns repeat the last one, which changes
    // no maximum and so needs no mask.
    void (*pack)(Rows<T> rows, index_t count, index_t dim, T* panel /* [dim, C] */);

    // row_max[r] = max(row_max[r], max_j <x_r, y_j> y_scale[j]), column_max[j] = max(column_max[j],
    // max_r <x_r, y_j> x_scale[r]), for count <= R rows and packed columns.
    void (*match)(Rows<T> x, const T* x_scale /* [count] */, index_t count,
                  const T* panels /* [panel_count, dim, C] */,
                  const T* y_scale /* [panel_count * C] */, index_t panel_count, index_t dim,
                  T* row_max /* [count] */, T* column_max /* [panel_count * C] */);

    // The same for any number of rows on both sides, none of them packed: for pairs so short that
    // packing would cost more than the products.
    void (*match_short)(Rows<T> x, const T* x_scale /* [N] */, index_t N, Rows<T> y,
                        const T* y_scale /* [M] */, index_t M, index_t dim, T* row_max /* [N] */,
                        T* column_max /* [M] */);
};

struct Isa {
    const char* name;
    const char* description;
    bool (*supported)();
    Kernels<float> float32;
    Kernels<double> float64;
};

// Compiled instruction sets, best first; the scalar one is always there and last.
const Isa* const* isas();
index_t isa_count();

// The named instruction set; null if it is not compiled in.
const Isa* find_isa(const char* name);

// The first that this processor supports.
const Isa& best_isa();

extern const Isa kScalar;
extern const Isa kGeneric;
extern const Isa kAvx2;
extern const Isa kAvx512;

} // namespace flashbertscore
