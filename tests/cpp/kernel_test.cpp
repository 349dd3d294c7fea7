// The CUDA kernels against the equation in double, one pair at a time.
//
// Built on the emulation plain, under ThreadSanitizer, and under AddressSanitizer and UBSan by
// `make emulate`; by nvcc for a device, and run there under compute-sanitizer, by `make gpu`. Every
// buffer ends where its last row ends, so that a row too many is an error of the address
// sanitizer; similarities are all negative in many cases, so that a padding cell taken for 0 is
// an error of value. `kernel_test NAME` runs the groups whose name contains NAME,
// `kernel_test NAME bf16` for one of fp32, fp64, bf16, fp16.
#if defined(FLASHBERTSCORE_EMULATED)
#include <sys/mman.h>
#endif

#include <cstring>

#include "groups.h"
#include "matching.h"

namespace fbs = flashbertscore;
using namespace fbs::test;
using fbs::DType;
using fbs::index_t;

namespace {

// Every tile boundary of either side, all similarities negative, ragged dimensions.
void edges() {
    const index_t lengths[] = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 256, 257};
    for (DType dtype : dtypes) {
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

// The same for pairs that blocks take whole: more of them than the device has multiprocessors.
void whole_edges() {
    const index_t lengths[] = {1, 127, 128, 129, 255, 256, 257, 384, 385, 511, 512};
    for (DType dtype : dtypes) {
        for (int turn = 0; turn < 3; ++turn) {
            Documents x{dtype, 8}, y{dtype, 8};
            const index_t count = 11;
            for (index_t d = 0; d < count; ++d) {
                x.add(lengths[d]);
                y.add(lengths[(d + std::vector<index_t>{0, 10, 4}[turn]) % count]);
            }
            fill(x, Data::negative, 60 + 2 * turn);
            fill(y, Data::negative, 61 + 2 * turn);
            const auto got = run(view(x, -1, 0), view(y, -1, 0), {}, count, DEVICE);
            for (index_t p = 0; p < count; ++p) {
                expect_close(got[p], equation(x, p, y, p), dtype,
                             label(dtype, x.length(p), y.length(p), 8, "whole"));
            }
        }
    }
}

// Pairs longer than a block takes, in parts; persistent loops; one sided extremes.
void longs() {
    const index_t shapes[][3] = {{513, 700, 24}, {1, 1300, 16}, {1300, 1, 16}, {600, 5, 9},
                                 {130, 514, 40}, {0, 700, 8},   {700, 0, 8}};
    for (DType dtype : dtypes) {
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
    for (DType dtype : dtypes) {
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
            const fbs::cuda::Device large = {40, 227 * 1024};
            const auto wide = run(packed_x, packed_y, {}, count, large);
            // Documents end before many of the parts that their width is cut into.
            const auto cut = run(view(y, 200, 0), view(x, 530, 0), {}, count, large);
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
                expect(same_bits(cut[p], swapped[p]), what + "cut: other bits");
            }
            for (std::size_t i = 0; i < list.size() / 2; ++i) {
                expect(same_bits(listed[i], want[list[2 * i]]),
                       label(dtype, 0, 0, dim, "listed: other bits"));
            }
        }
    }
}

// More pairs, blocks of rows or maxima than one launch takes: the same bits in several.
void chunks() {
    for (DType dtype : dtypes) {
        for (const auto& [n, pad] : {std::pair<index_t, index_t>{40, 0}, {140, 1}}) {
            Documents x{dtype, 24}, y{dtype, 24};
            const index_t count = 5;
            for (index_t d = 0; d < count; ++d) {
                x.add(n - 3 * d);
                y.add(n - 20 + 2 * d);
            }
            fill(x, Data::normal, 70);
            fill(y, Data::normal, 71);
            weigh(y, 72);
            using Sides = std::pair<fbs::TokenBatch, fbs::TokenBatch>;
            const Sides packed = {view(x, -1, pad), view(y, -1, 0)};
            const Sides padded = {view(x, n, pad), view(y, n, 0)};
            const Pairs list = {4, 0, 0, 4, 3, 3, 2, 1, 1, 2};
            const fbs::cuda::Device many = {20, 227 * 1024}; // more than pairs: long ones in parts
            for (const auto& device : {DEVICE, many}) {
                const auto want = run(packed.first, packed.second, {}, count, device);
                const auto listed = run(packed.first, packed.second, list, count, device);
                for (const fbs::cuda::Limits& limits :
                     {fbs::cuda::Limits{2}, {100, 3}, {100, 100, 1400}}) {
                    const auto again =
                        run(packed.first, packed.second, list, count, device, limits);
                    const auto cut = run(padded.first, padded.second, {}, count, device, limits);
                    for (index_t p = 0; p < count; ++p) {
                        const std::string what = label(dtype, n, n, 24, "chunks");
                        expect_close(want[p], equation(x, p, y, p), dtype, what);
                        expect(same_bits(cut[p], want[p]), what + ": other bits");
                        expect(same_bits(again[p], listed[p]), what + " listed: other bits");
                    }
                }
            }
        }
    }
}

// Rows, documents and buffers that start beside the multiples of 16 bytes that cp.async needs.
void alignments() {
    for (DType dtype : dtypes) {
        const index_t dim = 64, count = 3, size = static_cast<index_t>(bytes_of(dtype));
        for (index_t n : {30, 150}) {
            Documents x{dtype, dim};
            for (index_t d = 0; d < count; ++d) x.add(n);
            fill(x, Data::normal, 80);
            const auto plain = view(x, n, 0);
            const auto want = run(plain, plain, {1, 0, 2, 1, 0, 0}, count, DEVICE);
            // Elements: before the first row, after each row, after each document.
            const index_t gaps[][3] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {0, 8, 0}, {8, 8, 8}};
            for (const auto& [before, after, between] : gaps) {
                const index_t row = dim + after, document = n * row + between;
                char* const start = buffer((before + count * document) * size);
                std::memset(start, 0xFF, (before + count * document) * size);
                char* const rows = start + before * size;
                auto side = plain;
                side.data = rows;
                side.row_stride = row;
                side.document_stride = document;
                for (index_t d = 0; d < count; ++d) {
                    for (index_t i = 0; i < n; ++i) {
                        std::memcpy(rows + (d * document + i * row) * size,
                                    static_cast<const char*>(plain.data) + (d * n + i) * dim * size,
                                    dim * size);
                    }
                }
                for (const bool first : {true, false}) { // the other side is aligned
                    const auto got = run(first ? side : plain, first ? plain : side,
                                         {1, 0, 2, 1, 0, 0}, count, DEVICE);
                    for (index_t p = 0; p < count; ++p) {
                        expect(same_bits(got[p], want[p]), label(dtype, n, n, dim, "alignment"));
                    }
                }
            }
        }
    }
}

// NaN and Inf at the corners of tiles, in tokens and in padding; masks with holes.
void poisons() {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const double inf = std::numeric_limits<double>::infinity();
    for (DType dtype : dtypes) {
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
    for (DType dtype : dtypes) {
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
    for (DType dtype : dtypes) {
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

// Norms whose squares, and whose products, are out of float's range, beside ordinary ones.
void scales() {
    const int exponents[] = {-120, 60, 0, -45, 120, 45};
    for (DType dtype : dtypes) {
        if (dtype == DType::float16) continue; // has no such numbers
        const index_t shapes[][2] = {{5, 72}, {40, 9}, {100, 72}, {200, 72}, {600, 9}};
        for (const auto& [n, dim] : shapes) {
            Documents x{dtype, dim}, y{dtype, dim};
            for (index_t d = 0; d < 5; ++d) { // of ordinary norms: the second and the last
                x.add(n - d);
                y.add(n);
            }
            fill(x, Data::negative, 40);
            fill(y, Data::negative, 41);
            Documents plain_x = x, plain_y = y;
            for (Documents* side : {&x, &y}) {
                for (index_t d : {0, 2, 3}) {
                    if (d == 3 && side == &x) continue;
                    for (index_t i = side->offsets[d]; i < side->offsets[d + 1]; ++i) {
                        for (index_t k = 0; k < dim; ++k) {
                            double& value = side->values[i * dim + k];
                            value = std::ldexp(value, exponents[(i + d) % 6]);
                        }
                    }
                }
            }
            const auto want = run(view(plain_x, -1, 0), view(plain_y, -1, 0), {}, 5, DEVICE);
            const auto packed = run(view(x, -1, 0), view(y, -1, 0), {}, 5, DEVICE);
            const auto padded = run(view(x, n, 8), view(y, n + 1, 0), {}, 5, {40, 227 * 1024});
            for (index_t p = 0; p < 5; ++p) {
                const std::string what = label(dtype, n - p, n, dim, "scales");
                expect_close(packed[p], equation(x, p, y, p), dtype, what);
                expect(same_bits(packed[p], padded[p]), what + ": other bits");
                if (p % 3 == 1) expect(same_bits(packed[p], want[p]), what + ": touched");
            }
        }
    }
}

// All tokens of a call too long, or all too short, on one side or on both.
void one_scale() {
    for (DType dtype : dtypes) {
        if (dtype == DType::float16) continue;
        for (index_t n : {40, 600}) {
            for (int exponent : {-120, 120}) {
                Documents x{dtype, 8}, y{dtype, 8};
                x.add(n);
                y.add(n - 7);
                fill(x, Data::negative, 44);
                fill(y, Data::negative, 45);
                const auto plain = view(y, -1, 0);
                for (double& value : x.values) value = std::ldexp(value, exponent);
                for (double& value : y.values) value = std::ldexp(value, exponent);
                const auto far_x = view(x, -1, 0), far_y = view(y, -1, 0);
                const Scores want = equation(x, 0, y, 0);
                const std::string what = label(dtype, n, n - 7, 8, "one scale");
                expect_close(run(far_x, plain, {}, 1, DEVICE)[0], want, dtype, what);
                expect_close(run(far_x, far_y, {}, 1, DEVICE)[0], want, dtype, what);
            }
        }
    }
}

#if defined(FLASHBERTSCORE_EMULATED)
// The coarser sums of sm_80. Of float32, exchanging the sides may there change a last bit, for the
// halves of a k of 16 are added one after the other: those comparisons are left to sm_90.
void coarse_sums() {
    fbs::emulation::tensor_core = fbs::emulation::SM_80;
    tour();
    for (DType dtype : dtypes) {
        for (index_t dim : {384, 1024}) { // all similarities near 1: the most to cut off
            Documents x{dtype, dim};
            x.add(9);
            fill(x, Data::same, 90);
            const auto got = run(view(x, -1, 0), view(x, -1, 0), {}, 1, DEVICE);
            const bool half = dtype == DType::bfloat16 || dtype == DType::float16;
            const double most = half ? 1e-8 * static_cast<double>(dim) : tolerance(dtype);
            expect(std::fabs(got[0].value[2] - 1) <= most, label(dtype, 9, 9, dim, "coarse sums"));
        }
    }
    fbs::emulation::tensor_core = fbs::emulation::SM_90;
}

// Rows that lie 2^27 elements apart: offsets, and steps of 16 rows, need 64 bits. Only the pages
// that are touched take memory.
void far_rows() {
    for (DType dtype : dtypes) {
        const index_t dim = 16, stride = (index_t{1} << 27) + 16, lengths[] = {1, 30, 140};
        Documents x{dtype, dim};
        for (index_t n : lengths) x.add(n);
        fill(x, Data::normal, 50);
        const index_t rows = x.offsets.back();
        const std::size_t size = bytes_of(dtype), bytes = ((rows - 1) * stride + dim) * size;
        void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        expect(memory != MAP_FAILED, "address space for far rows");
        if (memory == MAP_FAILED) return;
        for (index_t i = 0; i < rows; ++i) {
            for (index_t k = 0; k < dim; ++k) {
                encode(dtype, x.values[i * dim + k],
                       static_cast<char*>(memory) + (i * stride + k) * size);
            }
        }
        fbs::TokenBatch side = {memory,           dtype,   3,      dim, stride, 0, 0,
                                x.offsets.data(), nullptr, nullptr};
        for (const Pairs& list : {Pairs{1, 0, 0, 1, 1, 1}, Pairs{2, 2, 2, 1, 0, 2}}) {
            const auto got = run(side, side, list, 3, DEVICE);
            for (index_t p = 0; p < 3; ++p) {
                expect_close(got[p], equation(x, list[2 * p], x, list[2 * p + 1]), dtype,
                             label(dtype, 0, 0, dim, "far rows"));
            }
        }
        x.offsets = {0, 57, 114, 171};
        side.offsets = nullptr;
        side.width = 57;
        side.document_stride = 57 * stride;
        const auto got = run(side, side, {2, 0}, 1, DEVICE);
        expect_close(got[0], equation(x, 2, x, 0), dtype, label(dtype, 57, 57, dim, "far"));
        munmap(memory, bytes);
    }
}
#endif

} // namespace

int main(int argc, char** argv) {
    const std::pair<const char*, void (*)()> groups[] = {{"tour", tour},
                                                         {"rules", rules},
                                                         {"poisons", poisons},
                                                         {"scales", scales},
                                                         {"one_scale", one_scale},
#if defined(FLASHBERTSCORE_EMULATED)
                                                         {"far_rows", far_rows},
                                                         {"coarse_sums", coarse_sums},
#endif
                                                         {"edges", edges},
                                                         {"whole_edges", whole_edges},
                                                         {"longs", longs},
                                                         {"orders", orders},
                                                         {"chunks", chunks},
                                                         {"alignments", alignments},
                                                         {"matches_tour", matches_tour},
                                                         {"matches_cases", matches_cases},
                                                         {"matches_edges", matches_edges},
                                                         {"matches_chunks", matches_chunks},
                                                         {"matches_scales", matches_scales},
                                                         {"gradient_tour", gradient_tour},
                                                         {"gradient_cases", gradient_cases},
                                                         {"gradient_edges", gradient_edges},
                                                         {"gradient_scales", gradient_scales}};
    if (argc > 2) {
        std::erase_if(dtypes, [&](DType dtype) {
            return std::strcmp(NAMES[static_cast<int>(dtype)], argv[2]) != 0;
        });
    }
    int ran = 0;
    for (const auto& [name, group] : groups) {
        if (argc > 1 && std::strstr(name, argv[1]) == nullptr) continue;
        const int before = failures;
        group();
        memory.clear();
        ++ran;
        std::printf("%s: %s\n", name, failures == before ? "ok" : "FAILED");
        std::fflush(stdout);
    }
    std::printf("%d checks passed, %d failed\n", checks - failures, failures);
    return failures != 0 || ran == 0 || dtypes.empty();
}
