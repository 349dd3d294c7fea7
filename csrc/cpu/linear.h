// Linear layers on weights that were packed once: out = activation(x weight^T + bias) + residual.
#pragma once

#include "core/views.h"
#include "cpu/isa.h"

namespace flashbertscore {

// A weight [out, in] as panels of C of its rows: panels[p][k, c] = weight[p * C + c, k]. C is that
// of an instruction set (`Linear::columns`); rows beyond the last may hold anything finite.
struct PackedWeight {
    index_t in, out;
    const float* panels; // [ceil(out / C)][in, C]
    const float* bias;   // [out], or null
};

struct LinearCall {
    index_t rows;
    Rows<float> x; // [rows, in]
    PackedWeight weight;
    Activation activation;
    Rows<float> residual; // [rows, out]; null: nothing is added
    float* out;           // [rows, out], not overlapping x
    index_t out_stride;
};

// Uses at most `threads` threads. A row of the result depends on its row of x alone, to the bit:
// not on the rows beside it, and not on the number of threads.
void linear(const LinearCall& call, int threads, const Isa& isa);

} // namespace flashbertscore
