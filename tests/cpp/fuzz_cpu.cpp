// Differential fuzzing of the CPU kernels: random problems around every tile edge, each compiled
// instruction set against the scalar one, one thread against several.
//
//     fuzz_cpu SECONDS [SEED]
//
// Prints how many problems passed; on a difference prints the seed that repeats it and exits
// with 1.
#include "attention_problems.h"
#include "core/validate.h"
#include "cpu/greedy_match.h"
#include "cpu/grid.h"
#include "layer_problems.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace fbs = flashbertscore;
using fbs::DType;
using fbs::element_bytes;
using fbs::index_t;

namespace {

using Random = std::mt19937_64;

index_t uniform(Random& random, index_t low, index_t high) {
    return std::uniform_int_distribution<index_t>(low, high)(random);
}

bool chance(Random& random, double probability) {
    return std::uniform_real_distribution<double>(0.0, 1.0)(random) < probability;
}

// A size on or next to a multiple of a tile's edge.
index_t edge(Random& random, index_t most) {
    static const index_t kEdges[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96};
    const index_t at = kEdges[uniform(random, 0, 12)] + uniform(random, -1, 1);
    return std::min(most, std::max<index_t>(0, at));
}

index_t some_dim(Random& random) {
    static const index_t kEdges[] = {1, 2, 4, 8, 16, 32, 48, 64, 128, 256, 384, 512};
    return std::max<index_t>(1, kEdges[uniform(random, 0, 11)] + uniform(random, -1, 1));
}

void store(void* at, DType dtype, double value) {
    const float single = static_cast<float>(value);
    std::uint32_t bits;
    std::memcpy(&bits, &single, 4);
    std::uint16_t half = 0;
    switch (dtype) {
    case DType::float64: std::memcpy(at, &value, 8); return;
    case DType::float32: std::memcpy(at, &single, 4); return;
    case DType::bfloat16: // truncated: any value will do
        half = static_cast<std::uint16_t>(bits >> 16);
        break;
    case DType::float16: {
        const int exponent = static_cast<int>((bits >> 23) & 0xff) - 112;
        const std::uint32_t sign = (bits >> 16) & 0x8000u;
        if (std::isnan(single)) {
            half = 0x7e00;
        } else if (exponent >= 31) {
            half = static_cast<std::uint16_t>(sign | 0x7c00u);
        } else if (exponent <= 0) {
            half = static_cast<std::uint16_t>(sign | uint16_t(std::fabs(single) * 0x1p24f));
        } else {
            half = static_cast<std::uint16_t>(sign | (static_cast<std::uint32_t>(exponent) << 10) |
                                              ((bits >> 13) & 0x3ffu));
        }
        break;
    }
    }
    std::memcpy(at, &half, 2);
}

// One side with all that it owns. Buffers are exactly as large as the views say, so that a
// sanitizer sees a read beyond them.
struct Side {
    std::vector<char> data;
    std::vector<index_t> offsets;
    std::vector<std::uint8_t> mask;
    std::vector<float> weights32;
    std::vector<double> weights64;
    fbs::TokenBatch batch{};
    index_t rows = 0;
};

Side make_side(Random& random, DType dtype, index_t documents, index_t dim, bool packed,
               bool large) {
    Side side;
    fbs::TokenBatch& batch = side.batch;
    batch.dtype = dtype;
    batch.documents = documents;
    batch.dim = dim;
    batch.row_stride = dim + (chance(random, 0.3) ? uniform(random, 1, 5) : 0);
    const index_t most = large ? 700 : 100;
    if (packed) {
        side.offsets.push_back(0);
        for (index_t d = 0; d < documents; ++d) {
            const index_t length = large ? uniform(random, 300, most) : edge(random, most);
            side.offsets.push_back(side.offsets.back() + length);
        }
        batch.offsets = side.offsets.data();
        side.rows = side.offsets.back();
    } else {
        batch.width = large ? uniform(random, 300, most) : edge(random, most);
        batch.document_stride = batch.width * batch.row_stride + uniform(random, 0, 3);
        side.rows = documents * batch.width;
        if (chance(random, 0.5)) {
            side.mask.resize(static_cast<std::size_t>(side.rows));
            const bool holes = chance(random, 0.5);
            // A wide batch can have few tokens: matched like a short pair, whatever its width.
            const double kept = chance(random, 0.3) ? 0.05 : 0.7;
            for (index_t d = 0; d < documents; ++d) {
                const index_t first = uniform(random, 0, batch.width);
                for (index_t i = 0; i < batch.width; ++i) {
                    side.mask[static_cast<std::size_t>(d * batch.width + i)] =
                        holes ? chance(random, kept) : i >= first;
                }
            }
            batch.mask = side.mask.data();
        }
    }
    const index_t bytes = element_bytes(dtype);
    // Any alignment that the element type allows.
    const index_t shift = uniform(random, 0, 15);
    index_t elements = 0;
    for (index_t d = 0; d < documents; ++d) {
        if (batch.length(d) > 0) {
            elements = std::max(elements, batch.element(d, batch.length(d) - 1) + dim);
        }
    }
    side.data.resize(static_cast<std::size_t>((shift + elements) * bytes));
    char* start = side.data.data() + shift * bytes;
    batch.data = start;
    std::normal_distribution<double> normal;
    const int kind = static_cast<int>(uniform(random, 0, 3));
    for (index_t d = 0; d < documents; ++d) {
        for (index_t i = 0; i < batch.length(d); ++i) {
            const double scale =
                chance(random, 0.01) ? std::pow(10.0, double(uniform(random, -30, 30))) : 1.0;
            const bool zero = chance(random, 0.02);
            for (index_t k = 0; k < dim; ++k) {
                double value = zero ? 0.0 : scale * normal(random);
                if (kind == 1) { value = std::fabs(value); }
                if (kind == 2) { value = std::round(value); }
                store(start + (batch.element(d, i) + k) * bytes, dtype, value);
            }
        }
        if (batch.length(d) > 0 && chance(random, 0.05)) {
            const double bad[] = {std::numeric_limits<double>::quiet_NaN(),
                                  std::numeric_limits<double>::infinity()};
            const index_t at = batch.element(d, uniform(random, 0, batch.length(d) - 1)) +
                               uniform(random, 0, dim - 1);
            store(start + at * bytes, dtype, bad[uniform(random, 0, 1)]);
        }
    }
    if (chance(random, 0.5)) {
        for (index_t i = 0; i < side.rows; ++i) {
            side.weights64.push_back(chance(random, 0.2) ? 0.0 : double(uniform(random, 1, 100)));
            side.weights32.push_back(static_cast<float>(side.weights64.back()));
        }
        batch.weights = dtype == DType::float64 ? static_cast<const void*>(side.weights64.data())
                                                : side.weights32.data();
    }
    return side;
}

std::vector<double> scores(const Side& x, const Side& y, const fbs::PairList& pairs, int threads,
                           const fbs::Isa& isa) {
    const std::size_t count = static_cast<std::size_t>(pairs.count);
    std::vector<double> all;
    if (x.batch.dtype == DType::float64) {
        all.resize(3 * count);
        fbs::greedy_match(x.batch, y.batch, pairs,
                          {all.data(), all.data() + count, all.data() + 2 * count}, threads, isa);
    } else {
        std::vector<float> single(3 * count);
        fbs::greedy_match(x.batch, y.batch, pairs,
                          {single.data(), single.data() + count, single.data() + 2 * count},
                          threads, isa);
        all.assign(single.begin(), single.end());
    }
    return all;
}

// Of all pairs, [3, C, R]; what is not asked for keeps its 7, which no score is.
std::vector<double> grid(const Side& x, const Side& y, index_t diagonal, int threads,
                         const fbs::Isa& isa) {
    const std::size_t count = static_cast<std::size_t>(x.batch.documents * y.batch.documents);
    std::vector<double> all(3 * count, 7.0);
    std::vector<float> single(3 * count, 7.0f);
    const bool wide = x.batch.dtype == DType::float64;
    const auto at = [&](std::size_t i) -> void* {
        return wide ? static_cast<void*>(all.data() + i * count) : single.data() + i * count;
    };
    fbs::match_grid(x.batch, y.batch, diagonal, {at(0), at(1), at(2)}, threads, isa);
    if (!wide) { all.assign(single.begin(), single.end()); }
    return all;
}

// Precision and recall within the bound, NaN where the other is; F only where it is well
// conditioned.
bool agree(const std::vector<double>& a, const std::vector<double>& b, double bound) {
    const std::size_t count = a.size() / 3;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (std::isnan(a[i]) != std::isnan(b[i])) { return false; }
        if (std::isnan(a[i])) { continue; }
        if (i >= 2 * count && !(std::fabs(a[i - 2 * count] + a[i - count]) > 0.2)) { continue; }
        if (!(std::fabs(a[i] - b[i]) <= (i >= 2 * count ? 200 : 1) * bound)) { return false; }
    }
    return true;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

// Returns what is wrong, empty if nothing.
std::string try_one(std::uint64_t seed) {
    Random random(seed);
    const DType dtype = static_cast<DType>(uniform(random, 0, 3));
    const bool large = chance(random, 0.03); // enough work that threads start
    const index_t dim = large ? 256 : some_dim(random);
    const index_t documents = large ? 2 : uniform(random, 1, 6);
    const bool packed = chance(random, 0.5);
    const Side x = make_side(random, dtype, documents, dim, packed, large);
    const Side y = make_side(random, dtype, documents, dim, packed, large);
    std::vector<index_t> list;
    fbs::PairList pairs = {nullptr, documents};
    if (chance(random, 0.5)) {
        pairs.count = uniform(random, 0, 12);
        for (index_t i = 0; i < 2 * pairs.count; ++i) {
            list.push_back(uniform(random, 0, documents - 1));
        }
        pairs.pairs = list.data();
        if (pairs.count == 0) { return ""; }
    }
    fbs::validate(x.batch, x.rows, y.batch, y.rows, pairs);
    const double bound = dtype == DType::float64 ? 1e-13 : 1e-6;
    const std::vector<double> truth = scores(x, y, pairs, 1, fbs::kScalar);
    for (index_t i = 0; i < fbs::isa_count(); ++i) {
        const fbs::Isa& isa = *fbs::isas()[i];
        if (!isa.supported()) { continue; }
        const std::vector<double> one = scores(x, y, pairs, 1, isa);
        if (!agree(one, truth, bound)) { return std::string(isa.name) + " differs from scalar"; }
        for (const int threads : {2, 5}) {
            if (!same_bits(one, scores(x, y, pairs, threads, isa))) {
                return std::string(isa.name) + ": bits depend on the number of threads";
            }
        }
        const fbs::PairList swapped_pairs = {nullptr, documents};
        if (!pairs.pairs) {
            const std::vector<double> back = scores(y, x, swapped_pairs, 1, isa);
            const std::size_t n = static_cast<std::size_t>(documents);
            if (std::memcmp(one.data(), back.data() + n, n * sizeof(double)) != 0) {
                return std::string(isa.name) +
                       ": precision is not the recall of the other direction";
            }
        }
    }
    return "";
}

// All pairs of two packed sides of different numbers of documents.
std::string try_grid(std::uint64_t seed) {
    Random random(seed);
    const DType dtype = static_cast<DType>(uniform(random, 0, 3));
    const bool large = chance(random, 0.03);
    const index_t dim = large ? 256 : some_dim(random);
    const index_t C = uniform(random, 1, large ? 2 : 12), R = uniform(random, 1, large ? 2 : 12);
    const Side x = make_side(random, dtype, C, dim, true, large);
    const Side y = make_side(random, dtype, R, dim, true, large);
    const double bound = dtype == DType::float64 ? 1e-13 : 1e-6;
    std::vector<index_t> list;
    for (index_t i = 0; i < C * R; ++i) { list.insert(list.end(), {i / R, i % R}); }
    const std::vector<double> truth = scores(x, y, {list.data(), C * R}, 1, fbs::kScalar);
    const std::size_t count = static_cast<std::size_t>(C * R);
    for (index_t i = 0; i < fbs::isa_count(); ++i) {
        const fbs::Isa& isa = *fbs::isas()[i];
        if (!isa.supported()) { continue; }
        const std::string name = std::string("grid, ") + isa.name;
        const std::vector<double> one = grid(x, y, C, 1, isa);
        if (!agree(one, truth, bound)) { return name + " differs from scalar pairs"; }
        if (!same_bits(one, grid(x, y, C, 3, isa))) {
            return name + ": bits depend on the number of threads";
        }
        const std::vector<double> back = grid(y, x, R, 1, isa);
        const index_t diagonal = uniform(random, 0, C);
        const std::vector<double> part = grid(x, y, diagonal, 1, isa);
        for (index_t p = 0; p < C * R; ++p) {
            const index_t c = p / R, r = p % R;
            const double* const precision = one.data() + p;
            const double* const recall = back.data() + static_cast<index_t>(count) + r * C + c;
            if (std::memcmp(precision, recall, sizeof(double)) != 0) {
                return name + ": precision is not the recall of the other direction";
            }
            const bool asked = c <= r + diagonal;
            if (asked && std::memcmp(precision, part.data() + p, sizeof(double)) != 0) {
                return name + ": bits depend on which part of the grid is asked for";
            }
        }
    }
    return "";
}

} // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: fuzz_cpu SECONDS [SEED]\n");
        return 2;
    }
    const double limit = std::atof(argv[1]);
    std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
    const auto start = std::chrono::steady_clock::now();
    long passed = 0;
    do {
        std::string wrong = try_one(seed);
        if (wrong.empty()) { wrong = try_grid(seed); }
        if (wrong.empty()) { wrong = fbs::test::try_attention(seed); }
        if (wrong.empty()) { wrong = fbs::test::try_layer(seed); }
        if (!wrong.empty()) {
            std::fprintf(stderr, "%s; repeat with: fuzz_cpu 0 %llu\n", wrong.c_str(),
                         static_cast<unsigned long long>(seed));
            return 1;
        }
        ++passed;
        ++seed;
    } while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() <
             limit);
    std::printf("%ld problems passed, next seed %llu\n", passed,
                static_cast<unsigned long long>(seed));
    return 0;
}
