#include "cpu/linear.h"

#include "core/team.h"
#include "cpu/ahead.h"
#include "cpu/tiles.h"

namespace flashbertscore {
namespace {

// What is summed at once: a panel of it is read for every tile of a block, mostly from L1.
constexpr index_t kDepth = 384;

// Columns that are finished before the next: sums that wait for the rest of their depth stay in L2.
constexpr index_t kColumns = 384;

// Rows [i, i + rows) of the result in the columns of panels [first, last).
void multiply(const LinearCall& call, index_t i, index_t rows, index_t first, index_t last,
              const Isa& isa) {
    const Linear& kernel = *isa.linear;
    const PackedWeight& weight = call.weight;
    const index_t C = kernel.columns;
    const index_t tiles = (rows + kernel.rows - 1) / kernel.rows;
    const index_t group = std::max<index_t>(1, kColumns / C);
    for (index_t p0 = first; p0 < last; p0 += group) {
        const index_t p1 = std::min(last, p0 + group);
        for (index_t k0 = 0; k0 == 0 || k0 < weight.in; k0 += kDepth) {
            const index_t depth = std::min(kDepth, weight.in - k0);
            const bool begins = k0 == 0, ends = k0 + depth == weight.in;
            for (index_t p = p0; p < p1; ++p) {
                const float* panel = weight.panels + (p * weight.in + k0) * C;
                // Read next: the same depth of the panel beside, or more of the first.
                const float* then = p + 1 < p1 ? panel + weight.in * C
                                    : ends     ? panel + depth * C
                                               : weight.panels + (p0 * weight.in + k0 + depth) * C;
                const Memory next = {reinterpret_cast<const char*>(then),
                                     depth * C * static_cast<index_t>(sizeof(float))};
                const bool last_read = p + 1 == last && ends;
                for (index_t t = 0; t < tiles; ++t) { // of equal size, or one row apart
                    const index_t from = i + rows * t / tiles;
                    const index_t count = i + rows * (t + 1) / tiles - from;
                    float* out = call.out + from * call.out_stride + p * C;
                    LinearTile tile{};
                    tile.x = {call.x[from] + k0, call.x.stride};
                    tile.count = count;
                    tile.depth = depth;
                    tile.panel = panel;
                    tile.columns = std::min(C, weight.out - p * C);
                    if (!begins) {
                        tile.begin = {out, call.out_stride};
                    } else if (weight.bias) {
                        tile.begin = {weight.bias + p * C, 0};
                    }
                    tile.activation = ends ? call.activation : Activation::none;
                    if (ends && call.residual.data) {
                        tile.residual = {call.residual[from] + p * C, call.residual.stride};
                    }
                    tile.out = out;
                    tile.out_stride = call.out_stride;
                    if (!last_read) { tile.ahead.reference = part(next, t, tiles); }
                    kernel.multiply(tile);
                }
            }
        }
    }
}

} // namespace

void linear(const LinearCall& call, int threads, const Isa& isa) {
    const index_t C = isa.linear->columns;
    const index_t panels = (call.weight.out + C - 1) / C;
    const index_t blocks = (call.rows + kLinearRows - 1) / kLinearRows;
    if (call.rows == 0 || panels == 0) { return; }
    threads = team_size(threads, static_cast<double>(call.rows) *
                                     static_cast<double>(call.weight.in * call.weight.out));
    if (threads == 1 || blocks >= 2 * threads) {
        share(threads, blocks, 1, [&](index_t begin, index_t end) {
            for (index_t b = begin; b < end; ++b) {
                const index_t i = call.rows * b / blocks;
                multiply(call, i, call.rows * (b + 1) / blocks - i, 0, panels, isa);
            }
        });
        return;
    }
    // Few rows: each thread takes some of the columns, so that it reads some of the weight.
    const index_t parts = std::min<index_t>(panels, threads);
    for (index_t b = 0; b < blocks; ++b) {
        const index_t i = call.rows * b / blocks;
        const index_t rows = call.rows * (b + 1) / blocks - i;
        share(threads, parts, 1, [&](index_t begin, index_t end) {
            multiply(call, i, rows, panels * begin / parts, panels * end / parts, isa);
        });
    }
}

} // namespace flashbertscore
