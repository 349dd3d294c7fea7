// Vectors of 16 bytes in the compiler's own notation: SSE2 on any x86-64, NEON on aarch64.
#include "cpu/microkernel.h"

namespace flashbertscore {
namespace {

template <class Element>
struct Vector16 {
    using T = Element;
    typedef T reg __attribute__((vector_size(16)));
    static constexpr index_t lanes = 16 / sizeof(T);
    static constexpr int row_tile = 6;

    static reg zero() { return reg{}; }
    static reg broadcast(T x) { return x - reg{}; }
    static reg load(const T* p) {
        reg x;
        __builtin_memcpy(&x, p, sizeof x);
        return x;
    }
    static void store(T* p, reg x) { __builtin_memcpy(p, &x, sizeof x); }
    static reg fma(reg a, reg b, reg c) { return a * b + c; }
    static reg add(reg a, reg b) { return a + b; }
    static reg mul(reg a, reg b) { return a * b; }
    static reg max(reg a, reg b) { return a > b ? a : b; }
    static T max_of_lanes(reg x) {
        T best = x[0];
        for (index_t i = 1; i < lanes; ++i) { best = x[i] > best ? x[i] : best; }
        return best;
    }

    template <DType dtype>
    static reg load_as(const void* row, index_t k) {
        reg x;
        for (index_t i = 0; i < lanes; ++i) { x[i] = element<T>(row, dtype, k + i); }
        return x;
    }

    struct squares {
        double lane[lanes];
    };
    static squares no_squares() { return {}; }
    static void add_squares(squares& sum, reg x) {
        for (index_t i = 0; i < lanes; ++i) {
            sum.lane[i] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        }
    }
    static double sum_of_lanes(const squares& sum) {
        double total = 0.0;
        for (index_t i = 0; i < lanes; ++i) { total += sum.lane[i]; }
        return total;
    }

    static void transpose(reg (&m)[lanes]) {
        for (index_t i = 0; i < lanes; ++i) {
            for (index_t j = i + 1; j < lanes; ++j) {
                const T upper = m[i][j];
                m[i][j] = m[j][i];
                m[j][i] = upper;
            }
        }
    }
};

} // namespace

constinit const Isa kGeneric = {
    "generic", "vectors of 16 bytes on any processor: 6 rows x 2 vectors", [] { return true; },
    kernels<Vector16<float>>(), kernels<Vector16<double>>()};

} // namespace flashbertscore
