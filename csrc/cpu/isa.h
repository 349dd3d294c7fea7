// What an instruction set brings: a few small functions per computed type. The sweep over tiles
// (greedy_match.cpp) is written once and calls them through this table.
#pragma once

#include "core/views.h"

#include <type_traits>

namespace flashbertscore {

// A bfloat16 as it is stored, for kernels that multiply them as they are.
enum class bfloat16 : std::uint16_t {};

// Rows of tokens, dim elements each, `stride` elements apart.
template <class S>
struct Rows {
    const S* data;
    index_t stride;
    const S* operator[](index_t i) const { return data + i * stride; }
};

struct Memory {
    const char* data = nullptr;
    index_t bytes = 0;
};

// Memory that is read after this call, of candidates and of references: asked for while its
// products run, which leave the memory idle. A hint, and free to be empty.
struct Ahead {
    Memory candidate, reference;
};

// A place is kept as the bits of a T, so that it moves with the maxima in the same vectors: an
// integer of T's size, which no arithmetic of T touches.
template <class T>
using Place = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;

// Where maxima are, for an alignment; of equals the lowest index. Indices count tokens of the
// document: of x from first_row on, of y from first_column on.
template <class T>
struct Places {
    index_t first_row = 0;
    index_t first_column = 0;
    Place<T>* row = nullptr;    // [count of x] column of each row's maximum
    Place<T>* column = nullptr; // [count of y] row of each column's maximum
};

// One side of a pair that is matched without packing.
template <class T, class S>
struct Side {
    Rows<S> tokens;
    index_t count; // at least 1
    T* scale;      // [count]
    T* best;       // [count] maxima so far
};

// T: the type computed in, float or double. S: the type that is multiplied, T or bfloat16. A scale
// is the inverse norm of a token: maxima are taken of <x_i, y_j> * scale of the other side, and the
// token's own scale, one positive factor for all its similarities, is left to the caller.
template <class T, class S = T>
struct Kernels {
    index_t rows;    // R: most rows of x that `match` takes
    index_t columns; // C: columns of a packed panel
    index_t step;    // dim must be a multiple of it

    // out[i]: the sum of squares of rows[i], in T, overflow and all.
    void (*squares)(const void* const* rows /* [count] */, index_t count, DType dtype, index_t dim,
                    T* out /* [count] */);

    // out[k] = row[k].
    void (*convert)(const void* row, DType dtype, index_t dim, S* out /* [dim] */);

    // panel[k, c, s] = rows[min(c, count - 1), k * step + s]: missing columns repeat the last one,
    // which changes no maximum and so needs no mask.
    void (*pack)(Rows<S> rows, index_t count, index_t dim, S* panel /* [dim / step, C, step] */);

    // row_max[r] = max(row_max[r], max_j <x_r, y_j> y_scale[j]), column_max[j] = max(column_max[j],
    // max_r <x_r, y_j> x_scale[r]), for count <= R rows and packed columns.
    void (*match)(Rows<S> x, const T* x_scale /* [count] */, index_t count,
                  const S* panels /* [panel_count, dim / step, C, step] */,
                  const T* y_scale /* [panel_count * C] */, index_t panel_count, index_t dim,
                  T* row_max /* [count] */, T* column_max /* [panel_count * C] */, Ahead ahead);

    // What `match` does in two steps, for panels that hold several documents one after the other:
    // products[r, c] = <x_r, y_c> for count <= R rows and all columns of the panels,
    void (*multiply)(Rows<S> x, index_t count, const S* panels, index_t panel_count, index_t dim,
                     T* products /* [count, panel_count * C] */, Ahead ahead);
    // and for some of these rows, of one document, the maxima within each document of y: row_max is
    // set, where a document has columns, column_max grows.
    void (*maxima)(const T* products /* [count, pitch] */, index_t pitch, const T* x_scale,
                   index_t count, const T* y_scale /* [first[documents]] */,
                   const index_t* first /* [documents + 1] columns */, index_t documents,
                   T* row_max /* [documents, row_pitch] */, index_t row_pitch,
                   T* column_max /* [pitch] */);

    // Like `match` for any number of rows on both sides, none of them packed: for pairs so short
    // that packing would cost more than the products. Of `fresh` tokens, read here for the first
    // time, it writes the scales; false: one is not ordinary (numeric.h), and nothing counts.
    bool (*match_short)(const Side<T, S>& x, const Side<T, S>& y, index_t dim, bool fresh,
                        Ahead ahead);

    // Both with the places of the maxima: written where a maximum grows, which must be so where one
    // is still -inf. The maxima have the same bits.
    void (*match_places)(Rows<S> x, const T* x_scale, index_t count, const S* panels,
                         const T* y_scale, index_t panel_count, index_t dim, T* row_max,
                         T* column_max, Ahead ahead, Places<T> places);
    bool (*match_short_places)(const Side<T, S>& x, const Side<T, S>& y, index_t dim, bool fresh,
                               Ahead ahead, Places<T> places);
};

// One head of self-attention over one text: rows of `dim` contiguous elements, one a token.
struct Head {
    DType dtype;    // float32 or bfloat16, of all four
    index_t length; // L, at least 1
    index_t dim;    // d, at least 1
    float scale;
    const void* q;
    index_t q_stride; // elements between two tokens
    const void* k;
    index_t k_stride;
    const void* v;
    index_t v_stride;
    void* out;
    index_t out_stride;
};

struct Attention {
    // Bytes that `attend` needs for heads of up to this length: O(length * dim).
    index_t (*scratch_bytes)(index_t length, index_t dim);

    // out[i] = sum_j p_ij v[j] with p_i = softmax_j(scale <q[i], k[j]>), computed in float32.
    void (*attend)(const Head& head, void* scratch /* aligned to a cache line */);
};

enum class Activation { none, relu, gelu }; // gelu: the exact one, x (1 + erf(x / sqrt 2)) / 2

// Rows of a linear layer against one panel of its weight, over a run of `depth` of what is summed.
struct LinearTile {
    Rows<float> x;      // [count, depth]
    index_t count;      // 1 .. R
    index_t depth;      // at least 1
    const float* panel; // [depth, C]
    index_t columns;    // 1 .. C, of the result
    Rows<float> begin;  // [count, columns] added to the sums: the bias, or sums so far; null: 0
    Activation activation;
    Rows<float> residual; // [count, columns] added to the activation; null: nothing
    float* out;           // [count, columns]
    index_t out_stride;
    Ahead ahead;
};

struct Linear {
    index_t rows;    // R
    index_t columns; // C, of a panel

    // A row's result depends on that row alone, to the bit.
    void (*multiply)(const LinearTile& tile);

    // Layer norm: out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias; out may be x.
    void (*normalize)(const float* x, index_t dim, const float* weight, const float* bias,
                      float eps, float* out);
};

struct Isa {
    const char* name;
    bool (*supported)();
    const Kernels<float>* float32; // float16 and, where there is nothing better, bfloat16 too
    const Kernels<double>* float64;
    const Kernels<float, flashbertscore::bfloat16>* bfloat16; // null: there is no such instruction
    const Attention* attention;
    const Linear* linear;
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
extern const Isa kAvx512bf16;

// Shared by the two sets that differ in bfloat16 alone.
extern const Kernels<float> kAvx512Float32;
extern const Kernels<double> kAvx512Float64;

} // namespace flashbertscore
