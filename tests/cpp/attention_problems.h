// Random problems of self-attention for fuzz_cpu: every instruction set against the scalar one, one
// thread against several, buffers exactly as large as the views say.
#pragma once

#include "core/numeric.h"
#include "cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace flashbertscore::test {

struct AttentionProblem {
    AttentionBatch batch{};
    std::vector<index_t> lengths;
    std::vector<char> operands[3];
};

// Queries, keys or values [texts, width, heads * dim] with gaps, garbage where there is no token.
inline HeadView operand(std::mt19937_64& random, const AttentionBatch& batch, double size,
                        std::vector<char>& memory) {
    const auto below = [&](index_t most) { return static_cast<index_t>(random() % (most + 1)); };
    HeadView view{};
    view.head_stride = batch.dim + below(2);
    view.token_stride = batch.heads * view.head_stride + below(3);
    view.text_stride = batch.width * view.token_stride + below(3);
    const index_t bytes = element_bytes(batch.dtype);
    index_t end = 0;
    for (index_t b = 0; b < batch.texts; ++b) {
        if (batch.lengths[b] == 0) { continue; }
        end = b * view.text_stride + (batch.lengths[b] - 1) * view.token_stride +
              (batch.heads - 1) * view.head_stride + batch.dim;
    }
    const index_t shift = below(15);
    memory.assign(static_cast<std::size_t>((shift + end) * bytes), '\xff'); // NaN
    char* data = memory.data() + shift * bytes;
    std::normal_distribution<double> normal(0.0, size);
    for (index_t b = 0; b < batch.texts; ++b) {
        for (index_t i = 0; i < batch.lengths[b]; ++i) {
            for (index_t n = 0; n < batch.heads * batch.dim; ++n) {
                const index_t at = b * view.text_stride + i * view.token_stride +
                                   n / batch.dim * view.head_stride + n % batch.dim;
                const float value = static_cast<float>(normal(random));
                const std::uint16_t half = float_to_bfloat16(value);
                std::memcpy(data + at * bytes,
                            bytes == 4 ? static_cast<const void*>(&value) : &half,
                            static_cast<std::size_t>(bytes));
            }
        }
    }
    view.data = data;
    return view;
}

inline std::vector<char> attended(AttentionBatch batch, int threads, const Isa& isa) {
    const index_t elements = batch.texts * batch.width * batch.heads * batch.dim;
    std::vector<char> out(static_cast<std::size_t>(elements * element_bytes(batch.dtype)), '\xff');
    batch.out = out.data();
    attend(batch, threads, isa);
    return out;
}

// Returns what is wrong, empty if nothing.
inline std::string try_attention(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto edge = [&](index_t most) { // on or next to a multiple of a vector or tile
        const index_t edges[] = {1, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128};
        return std::clamp<index_t>(edges[random() % 12] + index_t(random() % 3) - 1, 0, most);
    };
    AttentionProblem problem;
    AttentionBatch& batch = problem.batch;
    const bool large = random() % 40 == 0; // enough work that threads start
    batch.dtype = random() % 2 ? DType::float32 : DType::bfloat16;
    batch.texts = large ? 4 : 1 + index_t(random() % 3);
    batch.heads = large ? 12 : 1 + index_t(random() % 3);
    batch.dim = large ? 32 : std::max<index_t>(1, edge(80));
    batch.width = large ? 150 : edge(130);
    for (index_t b = 0; b < batch.texts; ++b) {
        problem.lengths.push_back(random() % 3 ? batch.width
                                               : index_t(random() % (batch.width + 1)));
    }
    batch.lengths = problem.lengths.data();
    const double size = random() % 4 ? 1.0 : 8.0; // of the latter, weights are nearly 0 and 1
    batch.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(batch.dim)));
    HeadView* views[] = {&batch.q, &batch.k, &batch.v};
    for (int i = 0; i < 3; ++i) {
        *views[i] = operand(random, batch, i < 2 ? size : 1.0, problem.operands[i]);
    }
    const std::vector<char> truth = attended(batch, 1, kScalar);
    const DType dtype = batch.dtype;
    const index_t count = static_cast<index_t>(truth.size()) / element_bytes(dtype);
    // A score is off by its size in units of 2^-24, a weight by as much relative to itself.
    const double bound = (dtype == DType::float32 ? 4e-6 : 1e-2) * size * size;
    for (index_t i = 0; i < isa_count(); ++i) {
        const Isa& isa = *isas()[i];
        if (!isa.supported()) { continue; }
        const std::vector<char> one = attended(batch, 1, isa);
        for (index_t k = 0; k < count; ++k) {
            const double got = element<double>(one.data(), dtype, k);
            const double wanted = element<double>(truth.data(), dtype, k);
            if (!(std::fabs(got - wanted) <= bound)) {
                return std::string(isa.name) + ": attention differs from scalar by " +
                       std::to_string(got - wanted);
            }
        }
        for (const int threads : {2, 5}) {
            if (attended(batch, threads, isa) != one) {
                return std::string(isa.name) + ": bits of attention depend on threads";
            }
        }
    }
    return "";
}

} // namespace flashbertscore::test
