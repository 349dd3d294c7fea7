// What an instruction set brings: five small functions per computed type. The sweep over tiles
// (greedy_match.cpp) is written once and calls them through this table.
#pragma once

#include "core/views.h"

namespace flashbertscore {

// T: the type computed in, float or double.
template <class T>
struct Kernels {
    index_t rows;    // R: most rows of x that `match` takes
    index_t columns; // C: columns of a packed panel

    // Sum of squares of one row, accumulated in double.
    double (*sum_of_squares)(const void* row, DType dtype, index_t dim);

    // out[k] = row[k] * scale.
    void (*scale)(const void* row, DType dtype, index_t dim, T scale, T* out /* [dim] */);

    // panel[k, c] = rows[min(c, count - 1), k]: missing columns repeat the last one, which changes
    // no maximum and so needs no mask.
    void (*pack)(const T* rows /* [count, dim] */, index_t count, index_t dim,
                 T* panel /* [dim, C] */);

    // row_max[r] = max(row_max[r], max_j <x_r, y_j>) and column_max[j] likewise.
    void (*match)(const T* x /* [count, dim] */, index_t count,
                  const T* panels /* [panel_count, dim, C] */, index_t panel_count, index_t dim,
                  T* row_max /* [count] */, T* column_max /* [panel_count * C] */);
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
