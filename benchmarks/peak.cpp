// What one core of this machine can do: multiply-adds a second in registers, and bytes a second
// read from memory and copied through it. Built by peak.py with -march=native; prints JSON.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// Best rate of five runs of about 50 ms.
template <class Body>
double best_rate(double amount, const Body& body) {
    double best = 0.0;
    for (int run = 0; run < 5; ++run) {
        const double start = seconds();
        int repeats = 0;
        do {
            body();
            ++repeats;
        } while (seconds() - start < 0.05);
        best = std::max(best, amount * repeats / (seconds() - start));
    }
    return best;
}

constexpr int kChains = 24; // independent sums, to hide the latency of each
constexpr int kSteps = 10000;

template <class Reg, class Step>
double multiply_add_rate(Reg zero, int flop_per_step, const Step& step) {
    return best_rate(double(kSteps) * kChains * flop_per_step, [&] {
        Reg sum[kChains];
        for (Reg& s : sum) { s = zero; }
        for (int i = 0; i < kSteps; ++i) {
#pragma GCC unroll 24
            for (int c = 0; c < kChains; ++c) { sum[c] = step(sum[c]); }
        }
        for (Reg& s : sum) { asm volatile("" : : "m"(s)); }
    });
}

} // namespace

int main() {
    double float32 = 0.0, bfloat16 = 0.0;
#if defined(__AVX512F__)
    const __m512 a = _mm512_set1_ps(0.5f);
    float32 = multiply_add_rate(_mm512_setzero_ps(), 32,
                                [&](__m512 s) { return _mm512_fmadd_ps(a, a, s); });
#elif defined(__AVX2__) && defined(__FMA__)
    const __m256 a = _mm256_set1_ps(0.5f);
    float32 = multiply_add_rate(_mm256_setzero_ps(), 16,
                                [&](__m256 s) { return _mm256_fmadd_ps(a, a, s); });
#endif
#if defined(__AVX512BF16__)
    const __m512bh b = (__m512bh)_mm512_set1_epi16(0x3f00);
    bfloat16 = multiply_add_rate(_mm512_setzero_ps(), 64,
                                 [&](__m512 s) { return _mm512_dpbf16_ps(s, b, b); });
#endif
    std::vector<char> from(256u << 20, 1), to(256u << 20, 2);
    const double copy = best_rate(2.0 * double(from.size()), [&] {
        std::memcpy(to.data(), from.data(), from.size());
        asm volatile("" : : "r"(to.data()) : "memory");
    });
    // Eight sums, so that no addition waits for another.
    long sink = 0;
    const double read = best_rate(double(from.size()), [&] {
        const long* words = reinterpret_cast<const long*>(from.data());
        long sum[8] = {};
        for (std::size_t i = 0; i < from.size() / sizeof(long); i += 8) {
#pragma GCC unroll 8
            for (std::size_t j = 0; j < 8; ++j) { sum[j] += words[i + j]; }
        }
        for (const long part : sum) { sink += part; }
    });
    asm volatile("" : : "r"(sink));
    std::printf("{\"float32_gflops\": %.1f, \"bfloat16_gflops\": %.1f, \"copy_gbytes\": %.2f, "
                "\"read_gbytes\": %.2f}\n",
                float32 / 1e9, bfloat16 / 1e9, copy / 1e9, read / 1e9);
    return 0;
}
