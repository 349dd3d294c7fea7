// What the tests of the CUDA kernels are made of: documents, exact buffers, the equation in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/plan.h"
#include "emulation/half.h"

namespace flashbertscore::test {

inline int checks = 0, failures = 0;

inline void expect(bool ok, const std::string& what) {
    ++checks;
    if (ok) return;
    if (++failures <= 20) std::printf("FAILED %s\n", what.c_str());
}

inline std::size_t bytes_of(DType dtype) {
    return dtype == DType::float64 ? 8 : dtype == DType::float32 ? 4 : 2;
}

// Documents of one side, packed, with what the equation needs to know about them.
struct Documents {
    DType dtype;
    index_t dim;
    std::vector<index_t> offsets{0};
    std::vector<double> values{}; // as the dtype rounds them
    std::vector<double> weights{};
    std::vector<std::uint8_t> mask{};

    index_t length(index_t d) const { return offsets[d + 1] - offsets[d]; }
    void add(index_t length) { offsets.push_back(offsets.back() + length); }
};

inline double rounded(DType dtype, double value) {
    using namespace emulation;
    const float single = static_cast<float>(value);
    switch (dtype) {
    case DType::float64: return value;
    case DType::float32: return single;
    case DType::float16: return fp16_to_float(float_to_fp16(single));
    case DType::bfloat16: return bits_float(float_bits(single) & 0xFFFF0000u);
    }
    return 0;
}

// Rows of exactly as many bytes as needed, in memory of exactly that size.
struct Buffer {
    std::unique_ptr<char[]> host;
    std::size_t bytes;
};
inline std::map<const void*, Buffer> memory;
inline char* buffer(std::size_t bytes) {
    std::unique_ptr<char[]> host(new char[bytes]);
    char* at = host.get();
    memory[at] = {std::move(host), bytes};
    return at;
}

// The kernels' side of an address in a buffer: itself on the emulation, one in a copy of exactly
// the buffer's size on a device.
#if defined(FLASHBERTSCORE_EMULATED)
struct Twins {
    template <class T>
    T* of(T* host) {
        return host;
    }
    void* scratch(std::size_t bytes) {
        char* at = buffer(bytes);
        std::memset(at, 0xFF, bytes);
        return at;
    }
    void fetch(char*) {}
};
#else
struct Twins {
    std::map<const void*, void*> made;

    ~Twins() {
        for (const auto& [host, device] : made) cudaFree(device);
    }
    template <class T>
    T* of(T* host) {
        if (host == nullptr) return nullptr;
        const auto& [begin, buffer] = *std::prev(memory.upper_bound(host));
        void*& device = made[begin];
        if (device == nullptr) {
            cuda::check(cudaMalloc(&device, std::max<std::size_t>(buffer.bytes, 1)), "malloc");
            cuda::check(cudaMemcpy(device, begin, buffer.bytes, cudaMemcpyHostToDevice), "upload");
        }
        const auto offset = static_cast<const char*>(static_cast<const void*>(host)) -
                            static_cast<const char*>(begin);
        return static_cast<T*>(static_cast<void*>(static_cast<char*>(device) + offset));
    }
    void* scratch(std::size_t bytes) { // uninitialized, for initcheck
        void* device = nullptr;
        cuda::check(cudaMalloc(&device, std::max<std::size_t>(bytes, 1)), "malloc");
        made[device] = device;
        return device;
    }
    void fetch(char* host) {
        cuda::check(cudaMemcpy(host, made.at(host), memory.at(host).bytes, cudaMemcpyDeviceToHost),
                    "kernels");
    }
};
#endif

inline void encode(DType dtype, double value, char* at) {
    using namespace emulation;
    const float single = static_cast<float>(value);
    std::uint16_t half = 0;
    switch (dtype) {
    case DType::float64: std::memcpy(at, &value, 8); return;
    case DType::float32: std::memcpy(at, &single, 4); return;
    case DType::float16: half = float_to_fp16(single); break;
    case DType::bfloat16: half = static_cast<std::uint16_t>(float_bits(single) >> 16); break;
    }
    std::memcpy(at, &half, 2);
}

inline void* reals(DType dtype, const std::vector<double>& values) {
    const std::size_t size = dtype == DType::float64 ? 8 : 4;
    char* to = buffer(values.size() * size);
    for (std::size_t i = 0; i < values.size(); ++i) {
        encode(size == 8 ? DType::float64 : DType::float32, values[i], to + i * size);
    }
    return to;
}

struct Scores {
    double value[3];
};

inline double similarity(const Documents& x, index_t i, const Documents& y, index_t j) {
    const double *a = &x.values[i * x.dim], *b = &y.values[j * y.dim];
    double dot = 0, aa = 0, bb = 0;
    for (index_t k = 0; k < x.dim; ++k) {
        dot += a[k] * b[k];
        aa += a[k] * a[k];
        bb += b[k] * b[k];
    }
    return aa == 0 || bb == 0 ? 0 : dot / std::sqrt(aa) / std::sqrt(bb);
}

inline Scores equation(const Documents& x, index_t c, const Documents& y, index_t r) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    std::vector<index_t> rows, columns;
    bool poison = false;
    const auto tokens = [&](const Documents& side, index_t d, std::vector<index_t>& valid) {
        for (index_t i = side.offsets[d]; i < side.offsets[d + 1]; ++i) {
            if (!side.mask.empty() && !side.mask[i]) continue;
            valid.push_back(i);
            for (index_t k = 0; k < side.dim; ++k) {
                poison = poison || !std::isfinite(side.values[i * side.dim + k]);
            }
        }
    };
    tokens(x, c, rows);
    tokens(y, r, columns);
    if (poison) return {{nan, nan, nan}};
    if (rows.empty() || columns.empty()) return {{0, 0, 0}};
    std::vector<double> row(rows.size(), -2), column(columns.size(), -2);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        for (std::size_t j = 0; j < columns.size(); ++j) {
            const double s = similarity(x, rows[i], y, columns[j]);
            row[i] = std::max(row[i], s);
            column[j] = std::max(column[j], s);
        }
    }
    const auto mean = [](const Documents& side, const std::vector<index_t>& valid,
                         const std::vector<double>& best) {
        double sum = 0, weight = 0;
        for (std::size_t i = 0; i < valid.size(); ++i) {
            const double w = side.weights.empty() ? 1 : side.weights[valid[i]];
            sum += w * best[i];
            weight += w;
        }
        return sum / weight;
    };
    const double p = mean(x, rows, row), r_ = mean(y, columns, column);
    const double f = std::isnan(p + r_) || p + r_ == 0 ? 0 : 2 * p * r_ / (p + r_);
    return {{p, r_, f}};
}

using Pairs = std::vector<index_t>;

// A padded batch if `width` >= 0: documents of `width` rows, those beyond the length masked out and
// NaN. `pad`: elements between the end of a row and the next one.
inline TokenBatch view(const Documents& side, index_t width, index_t pad) {
    const index_t documents = static_cast<index_t>(side.offsets.size()) - 1;
    const bool padded = width >= 0;
    const index_t rows = padded ? documents * width : side.offsets.back();
    const index_t stride = side.dim + pad;
    const std::size_t size = bytes_of(side.dtype);
    const std::size_t used = rows == 0 ? 0 : ((rows - 1) * stride + side.dim) * size;
    char* data = buffer(used);
    std::memset(data, 0xFF, used); // NaN in every dtype
    std::vector<double> weights(rows, 3.0);
    char* mask = padded ? buffer(rows) : nullptr;
    for (index_t d = 0; d < documents; ++d) {
        for (index_t i = 0; i < (padded ? width : side.length(d)); ++i) {
            const index_t to = (padded ? d * width : side.offsets[d]) + i;
            const index_t from = side.offsets[d] + i;
            const bool exists = i < side.length(d);
            if (padded) mask[to] = exists && (side.mask.empty() || side.mask[from]);
            if (!exists) continue;
            for (index_t k = 0; k < side.dim; ++k) {
                encode(side.dtype, side.values[from * side.dim + k],
                       data + (to * stride + k) * size);
            }
            if (!side.weights.empty()) weights[to] = side.weights[from];
        }
    }
    index_t* offsets = nullptr;
    if (!padded) {
        offsets = reinterpret_cast<index_t*>(buffer(side.offsets.size() * 8));
        std::memcpy(offsets, side.offsets.data(), side.offsets.size() * 8);
    }
    return {data,
            side.dtype,
            documents,
            side.dim,
            stride,
            padded ? width * stride : 0,
            padded ? width : 0,
            offsets,
            reinterpret_cast<std::uint8_t*>(mask),
            side.weights.empty() ? nullptr : reals(side.dtype, weights)};
}

// The side with the addresses that the kernels read.
inline TokenBatch there(Twins& twins, TokenBatch side) {
    side.data = twins.of(side.data);
    side.mask = twins.of(side.mask);
    side.weights = twins.of(side.weights);
    return side;
}

inline std::vector<double> decoded(DType dtype, const char* at, index_t count) {
    using namespace emulation;
    std::vector<double> values(static_cast<std::size_t>(count));
    const std::size_t size = bytes_of(dtype);
    for (double& value : values) {
        float single;
        std::uint16_t half;
        std::memcpy(size == 8   ? static_cast<void*>(&value)
                    : size == 4 ? static_cast<void*>(&single)
                                : static_cast<void*>(&half),
                    at, size);
        at += size;
        if (size == 4) value = single;
        if (size == 2) value = dtype == DType::float16 ? fp16_to_float(half) : bf16_to_float(half);
    }
    return values;
}

// The dtype of scores, weights and similarities.
inline DType real_of(DType dtype) {
    return dtype == DType::float64 ? DType::float64 : DType::float32;
}

// Memory that a kernel is to write, full of a number that no result is.
inline char* unwritten(std::size_t bytes) {
    char* at = buffer(bytes);
    std::memset(at, 0x7F, bytes);
    return at;
}

// The best match of every token of candidates [0] and references [1], pair after pair.
struct Matches {
    std::vector<int> index[2];
    std::vector<double> similarity[2];
};

inline std::vector<Scores> run(const TokenBatch& x, const TokenBatch& y, const Pairs& pairs,
                               index_t count, cuda::Device device, const cuda::Limits& limits = {},
                               Matches* matches = nullptr) {
    // A device with less shared memory takes what it has room for.
    device.shared_bytes = std::min(device.shared_bytes, cuda::current_device().shared_bytes);
    const PairList list = {pairs.empty() ? nullptr : pairs.data(), count};
    const DType real = real_of(x.dtype);
    const index_t size = static_cast<index_t>(bytes_of(real));
    char *out[3], *index[2], *similarity[2];
    for (char*& at : out) at = unwritten(count * size);
    index_t entries[2] = {0, 0};
    for (index_t p = 0; p < count && matches; ++p) {
        entries[0] += x.length(list.candidate(p));
        entries[1] += y.length(list.reference(p));
    }
    Twins twins;
    AlignmentOut alignment;
    for (int s = 0; s < 2 && matches; ++s) {
        index[s] = unwritten(entries[s] * sizeof(int));
        similarity[s] = unwritten(entries[s] * size);
        auto* const places = reinterpret_cast<std::int32_t*>(index[s]);
        (s ? alignment.reference_index : alignment.candidate_index) = twins.of(places);
        (s ? alignment.reference_similarity : alignment.candidate_similarity) =
            twins.of(similarity[s]);
    }
    const cuda::Plan plan(there(twins, x), there(twins, y), list, device, limits,
                          matches != nullptr);
    void* workspace = twins.scratch(plan.workspace_bytes());
    plan.run({twins.of(out[0]), twins.of(out[1]), twins.of(out[2])}, workspace, nullptr, alignment);
    std::vector<Scores> scores(count);
    for (int s = 0; s < 3; ++s) {
        twins.fetch(out[s]);
        const auto values = decoded(real, out[s], count);
        for (index_t p = 0; p < count; ++p) scores[p].value[s] = values[p];
    }
    for (int s = 0; s < 2 && matches; ++s) {
        twins.fetch(index[s]);
        twins.fetch(similarity[s]);
        matches->index[s].resize(entries[s]);
        if (entries[s] > 0) std::memcpy(matches->index[s].data(), index[s], 4 * entries[s]);
        matches->similarity[s] = decoded(real, similarity[s], entries[s]);
    }
    return scores;
}

inline const cuda::Device DEVICE = {3, 227 * 1024};

enum class Data { normal, negative, same, zeros };

inline void fill(Documents& side, Data data, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    const index_t rows = side.offsets.back();
    side.values.resize(rows * side.dim);
    for (index_t i = 0; i < rows; ++i) {
        const double scale = std::exp(normal(random));
        for (index_t k = 0; k < side.dim; ++k) {
            double value = normal(random);
            // Two sides of opposite sign everywhere: every similarity is below 0.
            if (data == Data::negative) value = (0.5 + std::fabs(value)) * (seed % 2 ? 1 : -1);
            if (data == Data::same) value = std::sin(static_cast<double>(k + 1));
            if (data == Data::zeros) value = 0;
            side.values[i * side.dim + k] = rounded(side.dtype, value * scale);
        }
    }
}

inline void weigh(Documents& side, unsigned seed) {
    std::mt19937 random(seed);
    side.weights.resize(side.offsets.back());
    for (double& w : side.weights) w = (random() % 5) * 0.75;
}

inline double tolerance(DType dtype) { return dtype == DType::float64 ? 1e-12 : 2e-6; }

inline bool same_bits(const Scores& a, const Scores& b) {
    for (int s = 0; s < 3; ++s) {
        if (std::isnan(a.value[s]) && std::isnan(b.value[s])) continue;
        if (std::memcmp(&a.value[s], &b.value[s], 8) != 0) return false;
    }
    return true;
}

inline void expect_close(const Scores& got, const Scores& want, DType dtype,
                         const std::string& what) {
    for (int s = 0; s < 3; ++s) {
        const bool both_nan = std::isnan(got.value[s]) && std::isnan(want.value[s]);
        const bool close = std::fabs(got.value[s] - want.value[s]) <= tolerance(dtype);
        char text[160];
        std::snprintf(text, sizeof text, " %c: expected %.9g, got %.9g", "PRF"[s], want.value[s],
                      got.value[s]);
        expect(both_nan || close, what + text);
    }
}

inline const char* const NAMES[] = {"fp32", "fp64", "bf16", "fp16"};

inline std::string label(DType dtype, index_t n, index_t m, index_t dim, const char* more = "") {
    return std::string(NAMES[static_cast<int>(dtype)]) + " " + std::to_string(n) + "x" +
           std::to_string(m) + "x" + std::to_string(dim) + " " + more;
}

// Of the run: all, or the one that the command line names.
inline std::vector<DType> dtypes = {DType::float32, DType::float64, DType::bfloat16,
                                    DType::float16};

} // namespace flashbertscore::test
