// The CUDA kernels against the equation in double, one pair at a time.
//
// Built on the emulation plain, under ThreadSanitizer, and under AddressSanitizer and UBSan by
// `make emulate`; by nvcc for a device, and run there under compute-sanitizer, by `make gpu`. Every
// buffer ends where its last row ends, so that a row too many is an error of the address
// sanitizer; similarities are all negative in many cases, so that a padding cell taken for 0 is
// an error of value. `kernel_test NAME` runs the groups whose name contains NAME.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/plan.h"
#include "emulation/half.h"

namespace fbs = flashbertscore;
using fbs::DType;
using fbs::index_t;

namespace {

int checks = 0, failures = 0;

void expect(bool ok, const std::string& what) {
    ++checks;
    if (ok) return;
    if (++failures <= 20) std::printf("FAILED %s\n", what.c_str());
}

std::size_t bytes_of(DType dtype) {
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

double rounded(DType dtype, double value) {
    using namespace fbs::emulation;
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
std::map<const void*, Buffer> memory;
char* buffer(std::size_t bytes) {
    std::unique_ptr<char[]> host(new char[bytes]);
    char* at = host.get();
    memory[at] = {std::move(host), bytes};
    return at;
}

// The kernels' side of a buffer: itself on the emulation, a copy of exactly its size on a device.
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
        const std::size_t bytes = memory.at(host).bytes;
        void*& device = made[host];
        if (device == nullptr) {
            fbs::cuda::check(cudaMalloc(&device, std::max<std::size_t>(bytes, 1)), "malloc");
            fbs::cuda::check(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "upload");
        }
        return static_cast<T*>(device);
    }
    void* scratch(std::size_t bytes) { // uninitialized, for initcheck
        void* device = nullptr;
        fbs::cuda::check(cudaMalloc(&device, std::max<std::size_t>(bytes, 1)), "malloc");
        made[device] = device;
        return device;
    }
    void fetch(char* host) {
        fbs::cuda::check(
            cudaMemcpy(host, made.at(host), memory.at(host).bytes, cudaMemcpyDeviceToHost),
            "kernels");
    }
};
#endif

void encode(DType dtype, double value, char* at) {
    using namespace fbs::emulation;
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

void* reals(DType dtype, const std::vector<double>& values) {
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

double similarity(const Documents& x, index_t i, const Documents& y, index_t j) {
    const double *a = &x.values[i * x.dim], *b = &y.values[j * y.dim];
    double dot = 0, aa = 0, bb = 0;
    for (index_t k = 0; k < x.dim; ++k) {
        dot += a[k] * b[k];
        aa += a[k] * a[k];
        bb += b[k] * b[k];
    }
    return aa == 0 || bb == 0 ? 0 : dot / std::sqrt(aa) / std::sqrt(bb);
}

Scores equation(const Documents& x, index_t c, const Documents& y, index_t r) {
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
fbs::TokenBatch view(const Documents& side, index_t width, index_t pad) {
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

std::vector<Scores> run(const fbs::TokenBatch& x, const fbs::TokenBatch& y, const Pairs& pairs,
                        index_t count, const fbs::cuda::Device& device) {
    const std::size_t size = x.dtype == DType::float64 ? 8 : 4;
    char* out[3];
    for (char*& at : out) {
        at = buffer(count * size);
        std::memset(at, 0x7F, count * size); // a number that no score is
    }
    Twins twins;
    const auto there = [&](fbs::TokenBatch side) {
        side.data = twins.of(side.data);
        side.mask = twins.of(side.mask);
        side.weights = twins.of(side.weights);
        return side;
    };
    const fbs::cuda::Plan plan(there(x), there(y), {pairs.empty() ? nullptr : pairs.data(), count},
                               device);
    void* workspace = twins.scratch(plan.workspace_bytes());
    plan.run({twins.of(out[0]), twins.of(out[1]), twins.of(out[2])}, workspace, nullptr);
    for (char* at : out) twins.fetch(at);
    std::vector<Scores> scores(count);
    for (index_t p = 0; p < count; ++p) {
        for (int s = 0; s < 3; ++s) {
            float single;
            if (size == 8) {
                std::memcpy(&scores[p].value[s], out[s] + p * 8, 8);
            } else {
                std::memcpy(&single, out[s] + p * 4, 4);
                scores[p].value[s] = single;
            }
        }
    }
    return scores;
}

const fbs::cuda::Device DEVICE = {3, 227 * 1024};

enum class Data { normal, negative, same, zeros };

void fill(Documents& side, Data data, unsigned seed) {
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

void weigh(Documents& side, unsigned seed) {
    std::mt19937 random(seed);
    side.weights.resize(side.offsets.back());
    for (double& w : side.weights) w = (random() % 5) * 0.75;
}

double tolerance(DType dtype) { return dtype == DType::float64 ? 1e-12 : 2e-6; }

bool same_bits(const Scores& a, const Scores& b) {
    for (int s = 0; s < 3; ++s) {
        if (std::isnan(a.value[s]) && std::isnan(b.value[s])) continue;
        if (std::memcmp(&a.value[s], &b.value[s], 8) != 0) return false;
    }
    return true;
}

void expect_close(const Scores& got, const Scores& want, DType dtype, const std::string& what) {
    for (int s = 0; s < 3; ++s) {
        const bool both_nan = std::isnan(got.value[s]) && std::isnan(want.value[s]);
        const bool close = std::fabs(got.value[s] - want.value[s]) <= tolerance(dtype);
        char text[160];
        std::snprintf(text, sizeof text, " %c: expected %.9g, got %.9g", "PRF"[s], want.value[s],
                      got.value[s]);
        expect(both_nan || close, what + text);
    }
}

std::string label(DType dtype, index_t n, index_t m, index_t dim, const char* more = "") {
    static const char* names[] = {"fp32", "fp64", "bf16", "fp16"};
    return std::string(names[static_cast<int>(dtype)]) + " " + std::to_string(n) + "x" +
           std::to_string(m) + "x" + std::to_string(dim) + " " + more;
}

const DType ALL[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16};

// Every tile boundary of either side, all similarities negative, ragged dimensions.
void edges() {
    const index_t lengths[] = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 256, 257};
    for (DType dtype : ALL) {
        int turn = 0;
        for (index_t n : lengths) {
            // Against a few lengths each, so that all neighbours of a boundary meet.
            for (index_t m : {n, lengths[(turn + 5) % 16], lengths[(turn + 11) % 16]}) {
                const index_t dim = (std::vector<index_t>{8, 64, 72, 7, 130, 1, 33})[turn++ % 7];
                Documents x{dtype, dim}, y{dtype, dim};
                x.add(n);
                y.add(m);
                fill(x, Data::negative, 2 * turn);
                fill(y, Data::negative, 2 * turn + 1);
                const auto got = run(view(x, -1, 0), view(y, -1, 0), {}, 1, DEVICE);
                expect_close(got[0], equation(x, 0, y, 0), dtype, label(dtype, n, m, dim, "edge"));
            }
        }
    }
}

// Pairs longer than a block takes, in parts; persistent loops; one sided extremes.
void longs() {
    const index_t shapes[][3] = {{513, 700, 24}, {1, 1300, 16}, {1300, 1, 16}, {600, 5, 9},
                                 {130, 514, 40}, {0, 700, 8},   {700, 0, 8}};
    for (DType dtype : ALL) {
        for (const auto& shape : shapes) {
            Documents x{dtype, shape[2]}, y{dtype, shape[2]};
            x.add(shape[0]);
            y.add(shape[1]);
            fill(x, Data::negative, 8);
            fill(y, Data::negative, 9);
            weigh(x, 1);
            const auto got = run(view(x, -1, 0), view(y, -1, 0), {}, 1, DEVICE);
            expect_close(got[0], equation(x, 0, y, 0), dtype,
                         label(dtype, shape[0], shape[1], shape[2], "long"));
        }
    }
}

// The same pairs packed, padded, alone, in another order, swapped, on other devices: same bits.
void orders() {
    for (DType dtype : ALL) {
        for (index_t dim : {40, 100}) {
            Documents x{dtype, dim}, y{dtype, dim};
            for (index_t n : {20, 1, 33, 0, 70, 130, 300, 64, 5, 530}) x.add(n);
            for (index_t m : {31, 40, 1, 7, 0, 200, 129, 65, 33, 128}) y.add(m);
            fill(x, Data::normal, 3);
            fill(y, Data::normal, 4);
            weigh(x, 5);
            weigh(y, 6);
            const index_t count = 10;
            const auto packed_x = view(x, -1, 0), packed_y = view(y, -1, 8);
            const auto want = run(packed_x, packed_y, {}, count, DEVICE);
            const auto swapped = run(packed_y, packed_x, {}, count, DEVICE);
            const auto padded = run(view(x, 530, 0), view(y, 200, 0), {}, count, DEVICE);
            const auto narrow = run(packed_x, packed_y, {}, count, {3, 99 * 1024});
            const auto wide = run(packed_x, packed_y, {}, count, {40, 227 * 1024});
            Pairs list;
            for (index_t p : {9, 3, 3, 0, 7, 1, 8, 2, 6, 5, 4, 0}) {
                list.push_back(p);
                list.push_back(p);
            }
            const auto listed = run(packed_x, packed_y, list, 12, DEVICE);
            for (index_t p = 0; p < count; ++p) {
                const std::string what = label(dtype, x.length(p), y.length(p), dim);
                expect_close(want[p], equation(x, p, y, p), dtype, what + "packed");
                expect(same_bits(want[p], padded[p]), what + "padded: other bits");
                expect(same_bits(want[p], narrow[p]), what + "small device: other bits");
                expect(same_bits(want[p], wide[p]), what + "large device: other bits");
                const Scores back = {
                    {swapped[p].value[1], swapped[p].value[0], swapped[p].value[2]}};
                expect(same_bits(want[p], back), what + "swapped: other bits");
            }
            for (std::size_t i = 0; i < list.size() / 2; ++i) {
                expect(same_bits(listed[i], want[list[2 * i]]),
                       label(dtype, 0, 0, dim, "listed: other bits"));
            }
        }
    }
}

// NaN and Inf at the corners of tiles, in tokens and in padding; masks with holes.
void poisons() {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const double inf = std::numeric_limits<double>::infinity();
    for (DType dtype : ALL) {
        for (index_t n : {32, 130}) {
            const index_t dim = 64, m = 65;
            Documents x{dtype, dim}, y{dtype, dim};
            const std::vector<index_t> corners = {0, 15, 16, n - 2, n - 1};
            const index_t count = static_cast<index_t>(corners.size()) + 2;
            for (index_t d = 0; d < count; ++d) {
                x.add(n);
                y.add(m);
            }
            fill(x, Data::negative, 10);
            fill(y, Data::negative, 11);
            x.mask.assign(x.offsets.back(), 1);
            y.mask.assign(y.offsets.back(), 1);
            for (std::size_t c = 0; c < corners.size(); ++c) {
                x.values[(x.offsets[c] + corners[c]) * dim + dim - 1] = c % 2 ? inf : nan;
            }
            // The last two: bad values in masked rows touch nothing; nor do the holes.
            for (index_t d = count - 2; d < count; ++d) {
                for (index_t i = d % 3; i < n; i += 3) {
                    x.mask[x.offsets[d] + i] = 0;
                    x.values[(x.offsets[d] + i) * dim] = nan;
                }
                y.mask[y.offsets[d] + m - 1] = 0;
                y.mask[y.offsets[d]] = 0;
                y.values[(y.offsets[d] + m - 1) * dim + 5] = -inf;
            }
            for (const auto& device : {DEVICE, fbs::cuda::Device{40, 227 * 1024}}) {
                const auto got = run(view(x, n + 3, 0), view(y, m, 0), {}, count, device);
                for (index_t p = 0; p < count; ++p) {
                    expect_close(got[p], equation(x, p, y, p), dtype,
                                 label(dtype, n, m, dim, "poison ") + std::to_string(p));
                }
            }
        }
        Documents x{dtype, 8}, y{dtype, 8}; // NaN wins over an empty side
        x.add(3);
        y.add(0);
        fill(x, Data::normal, 1);
        fill(y, Data::normal, 2);
        x.values[9] = nan;
        const auto got = run(view(x, -1, 0), view(y, -1, 0), {}, 1, DEVICE);
        expect_close(got[0], equation(x, 0, y, 0), dtype, label(dtype, 3, 0, 8, "NaN and empty"));
    }
}

// Zero vectors, zero weights, equal tokens, everything masked.
void rules() {
    for (DType dtype : ALL) {
        for (index_t n : {5, 140}) {
            const index_t dim = 48;
            Documents x{dtype, dim}, y{dtype, dim}, zero{dtype, dim}, same{dtype, dim};
            for (Documents* side : {&x, &y, &zero, &same}) side->add(n);
            fill(x, Data::negative, 20);
            fill(y, Data::negative, 21);
            fill(zero, Data::zeros, 22);
            fill(same, Data::same, 23);
            const auto alone = [&](const Documents& a, const Documents& b, const char* what) {
                const auto got = run(view(a, n + 1, 0), view(b, n, 0), {}, 1, DEVICE);
                expect_close(got[0], equation(a, 0, b, 0), dtype, label(dtype, n, n, dim, what));
            };
            alone(x, zero, "against zeros");
            alone(zero, zero, "zeros");
            alone(same, same, "equal tokens");
            x.values[0 * dim] = 0;
            x.weights.assign(n, 0);
            alone(x, y, "zero weights");
            x.mask.assign(n, 0);
            alone(x, y, "all masked");
        }
    }
}

// Once through every kernel and tile size, short enough for the slowest sanitizer.
void tour() {
    for (DType dtype : ALL) {
        for (index_t n : {20, 50, 100, 200, 600}) {
            for (index_t dim : {40, 9}) {
                Documents x{dtype, dim}, y{dtype, dim};
                for (index_t d = 0; d < 4; ++d) {
                    x.add(n - d);
                    y.add(n - 3 + d);
                }
                fill(x, Data::negative, 30);
                fill(y, Data::negative, 31);
                weigh(x, 32);
                const auto packed = run(view(x, -1, 0), view(y, -1, 0), {}, 4, DEVICE);
                const auto padded = run(view(x, n, 0), view(y, n + 1, 0), {}, 4, DEVICE);
                for (index_t p = 0; p < 4; ++p) {
                    const std::string what = label(dtype, n - p, n - 3 + p, dim, "tour");
                    expect_close(packed[p], equation(x, p, y, p), dtype, what);
                    expect(same_bits(packed[p], padded[p]), what + ": other bits");
                }
            }
        }
    }
}

// The scratch: bounded whatever the lengths, and the schedule of any number of pairs.
void workspace() {
    for (DType dtype : ALL) {
        const index_t million = 1'000'000;
        const index_t offsets[] = {0, million};
        const fbs::TokenBatch one{nullptr, dtype, 1, 768, 768, 0, 0, offsets, nullptr, nullptr};
        const fbs::cuda::Device h200 = {132, 227 * 1024};
        const fbs::cuda::Plan plan(one, one, {nullptr, 1}, h200);
        expect(plan.workspace_bytes() < (std::size_t{256} << 20), "workspace of 1M x 1M tokens");
        std::vector<index_t> many(100'001);
        for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<index_t>(i) * 600;
        const fbs::TokenBatch docs{nullptr, dtype, 100'000,     8,       8,
                                   0,       0,     many.data(), nullptr, nullptr};
        const fbs::cuda::Plan split(docs, docs, {nullptr, 100'000}, h200);
        const std::size_t scales = 2 * many.back() * (dtype == DType::float64 ? 8 : 4);
        expect(split.workspace_bytes() <= fbs::cuda::Plan::SCRATCH_LIMIT + scales,
               "scratch of 100,000 long pairs");
        index_t covered = 0;
        for (const auto& chunk : split.chunks()) {
            expect(chunk.begin == covered, "chunks follow one another");
            covered += chunk.count;
        }
        expect(covered == 100'000, "chunks cover all pairs");
        const fbs::cuda::Plan none(one, one, {nullptr, 0}, h200);
        expect(none.chunks().empty(), "no pairs, no launches");
    }
}

} // namespace

int main(int argc, char** argv) {
    const std::pair<const char*, void (*)()> groups[] = {
        {"workspace", workspace}, {"tour", tour},   {"rules", rules},  {"poisons", poisons},
        {"edges", edges},         {"longs", longs}, {"orders", orders}};
    for (const auto& [name, group] : groups) {
        if (argc > 1 && std::strstr(name, argv[1]) == nullptr) continue;
        const int before = failures;
        group();
        memory.clear();
        std::printf("%s: %s\n", name, failures == before ? "ok" : "FAILED");
        std::fflush(stdout);
    }
    std::printf("%d checks passed, %d failed\n", checks - failures, failures);
    return failures != 0;
}
