// Alignments of the CUDA kernels against every similarity in double, token by token.
#include "groups.h"
#include "matching.h"

namespace flashbertscore::test {
namespace {

const cuda::Device LARGE = {40, 227 * 1024}, SMALL = {3, 99 * 1024};

bool is_token(const Documents& side, index_t row) { return side.mask.empty() || side.mask[row]; }

bool is_finite(const Documents& side, index_t d) {
    for (index_t i = side.offsets[d]; i < side.offsets[d + 1]; ++i) {
        for (index_t k = 0; k < side.dim && is_token(side, i); ++k) {
            if (!std::isfinite(side.values[i * side.dim + k])) return false;
        }
    }
    return true;
}

// Why `index` and `similarity` are wrong for token i of `own`; empty if they are right. Tokens of
// equal similarity in double are copies of each other, or zeros: there the lowest place is right.
// Tokens closer than the rounding of the kernels may stand for each other.
std::string complaint(const Documents& own, index_t i, const Documents& other, index_t r, int index,
                      double similarity) {
    const index_t first = other.offsets[r], m = other.length(r);
    std::vector<double> all(m, -2);
    for (index_t j = 0; j < m; ++j) {
        if (is_token(other, first + j)) all[j] = test::similarity(own, i, other, first + j);
    }
    const auto best = std::max_element(all.begin(), all.end());
    const double bound = tolerance(own.dtype);
    const auto wrong = [&](const char* what) {
        char text[160];
        std::snprintf(text, sizeof text, "%s: expected %td %.9g, got %d %.9g", what,
                      best - all.begin(), *best, index, similarity);
        return std::string(text);
    };
    if (index < 0 || index >= m || all[index] < -1.5) return wrong("no token");
    if (all[index] < *best - 2 * bound) return wrong("not the best match");
    if (std::find(all.begin(), all.begin() + index, all[index]) != all.begin() + index) {
        return wrong("not the lowest of equals");
    }
    return std::fabs(similarity - all[index]) <= bound ? std::string() : wrong("similarity");
}

// One side of one pair: entries of `rows` rows, of which those beyond the document are padding.
void expect_side(const Documents& own, index_t c, const Documents& other, index_t r, index_t rows,
                 const int* index, const double* similarity, const std::string& what) {
    const bool finite = is_finite(own, c) && is_finite(other, r);
    bool some = false;
    for (index_t j = other.offsets[r]; j < other.offsets[r + 1]; ++j) {
        some = some || is_token(other, j);
    }
    for (index_t i = 0; i < rows; ++i) {
        const index_t row = own.offsets[c] + i;
        const bool token = i < own.length(c) && is_token(own, row);
        std::string wrong;
        if (token && finite && some) {
            wrong = complaint(own, row, other, r, index[i], similarity[i]);
        } else {
            const bool right = token && !finite ? std::isnan(similarity[i]) : similarity[i] == 0;
            if (index[i] != -1 || !right) wrong = "expected no match";
        }
        if (wrong.empty()) {
            ++checks;
        } else {
            expect(false, what + " token " + std::to_string(i) + ": " + wrong);
        }
    }
}

struct Layout {
    index_t x_width, y_width; // -1: packed
    index_t pad;
};

// Runs the pairs and looks at all that comes back. Scores are those of a run without alignment, if
// `plain` is asked for.
Matches align(const Documents& x, const Documents& y, const Layout& layout, const Pairs& pairs,
              index_t count, const cuda::Device& device, const std::string& what,
              const cuda::Limits& limits = {}, bool plain = true) {
    const auto x_view = view(x, layout.x_width, layout.pad);
    const auto y_view = view(y, layout.y_width, layout.pad);
    Matches found;
    const auto scores = run(x_view, y_view, pairs, count, device, limits, &found);
    if (plain) {
        const auto want = run(x_view, y_view, pairs, count, device);
        for (index_t p = 0; p < count; ++p) {
            expect(same_bits(scores[p], want[p]), what + ": other bits with an alignment");
        }
    }
    index_t x_at = 0, y_at = 0;
    for (index_t p = 0; p < count; ++p) {
        const PairList list = {pairs.empty() ? nullptr : pairs.data(), count};
        const index_t c = list.candidate(p), r = list.reference(p);
        const std::string pair = what + " pair " + std::to_string(p);
        const index_t n = x_view.length(c), m = y_view.length(r);
        expect_side(x, c, y, r, n, found.index[0].data() + x_at, found.similarity[0].data() + x_at,
                    pair + " candidate");
        expect_side(y, r, x, c, m, found.index[1].data() + y_at, found.similarity[1].data() + y_at,
                    pair + " reference");
        x_at += n;
        y_at += m;
    }
    return found;
}

// Ties: every row has a copy 8 rows on, which the same thread meets, and with a `period` copies of
// rows in other warps and tiles, which blocks meet in any order.
void repeat(Documents& side, index_t d, index_t period) {
    const auto row = [&](index_t i) { return &side.values[(side.offsets[d] + i) * side.dim]; };
    for (index_t i = 0; i < side.length(d); ++i) {
        const index_t from = period > 0 && i >= period ? i - period : i / 8 % 2 ? i - 8 : i;
        if (from != i) std::copy_n(row(from), side.dim, row(i));
    }
}

} // namespace

// Once through every kernel that places maxima, with ties; short enough for the slowest sanitizer.
void matches_tour() {
    const index_t shapes[][2] = {{20, 40}, {140, 40}, {70, 9}};
    for (DType dtype : dtypes) {
        for (const auto& [n, dim] : shapes) {
            Documents x{dtype, dim}, y{dtype, dim};
            x.add(n);
            y.add(n - 3);
            fill(x, Data::negative, 100);
            fill(y, Data::negative, 101);
            repeat(x, 0, 0);
            repeat(y, 0, 0);
            weigh(x, 102);
            const Layout layout = n == 20 ? Layout{n, n + 1, 0} : Layout{-1, -1, 0};
            align(x, y, layout, {}, 1, DEVICE, label(dtype, n, n - 3, dim, "matches"), {}, false);
        }
    }
}

// Both sides of every tile boundary, all similarities negative, ties across tiles.
void matches_edges() {
    const index_t lengths[] = {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 192, 257};
    for (DType dtype : dtypes) {
        int turn = 0;
        for (index_t n : lengths) {
            for (index_t m : {n, lengths[(turn + 7) % 12]}) {
                const index_t dim = (std::vector<index_t>{8, 64, 72, 7, 130})[turn++ % 5];
                Documents x{dtype, dim}, y{dtype, dim};
                x.add(n);
                y.add(m);
                fill(x, Data::negative, 2 * turn);
                fill(y, Data::negative, 2 * turn + 1);
                repeat(x, 0, turn % 2 ? 64 : 0); // or the best match is beyond the first tiles
                repeat(y, 0, turn % 2 ? 64 : 0);
                const cuda::Device& device = turn % 3 ? DEVICE : turn % 2 ? LARGE : SMALL;
                align(x, y, {-1, -1, 0}, {}, 1, device, label(dtype, n, m, dim, "match edge"));
            }
        }
    }
}

// Masks with decoys under them, NaN in tokens and under masks, zeros, empty sides.
void matches_cases() {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (DType dtype : dtypes) {
        for (index_t n : {9, 131}) {
            const index_t dim = 24, m = 70;
            Documents x{dtype, dim}, y{dtype, dim};
            for (index_t length : {n, n, n - 1, n, n}) x.add(length);
            for (index_t length : {m, m - 2, m, index_t{0}, m}) y.add(length);
            fill(x, Data::negative, 110);
            fill(y, Data::negative, 111);
            x.mask.assign(x.offsets.back(), 1);
            y.mask.assign(y.offsets.back(), 1);
            // The best match of token 2, twice under a mask; the last tokens hidden.
            for (index_t j : {0, 5, 68, 69}) {
                y.mask[j] = 0;
                std::copy_n(&x.values[2 * dim], dim, &y.values[j * dim]);
            }
            for (index_t i : {index_t{3}, n - 1}) x.mask[i] = 0;
            // Pair 1: NaN in a token. Pair 2: NaN under the mask, a zero vector on either side.
            x.values[(x.offsets[1] + n - 1) * dim + 7] = nan;
            y.mask[y.offsets[2] + 64] = 0;
            y.values[(y.offsets[2] + 64) * dim] = nan;
            std::fill_n(&x.values[(x.offsets[2] + 4) * dim], dim, 0.0);
            std::fill_n(&y.values[(y.offsets[2] + 65) * dim], dim, 0.0);
            // Pair 3: an empty side. Pair 4: everything masked on one.
            for (index_t j = y.offsets[4]; j < y.offsets[5]; ++j) y.mask[j] = 0;
            const std::string what = label(dtype, n, m, dim, "match cases ");
            align(x, y, {n + 1, m, 8}, {}, 5, DEVICE, what);
            align(x, y, {n, m, 0}, {1, 2, 2, 0, 2, 0, 0, 4, 4, 3}, 5, LARGE, what + "listed");
            // Packed documents have no mask: the decoys are the best matches, NaN is a token.
            x.mask.clear();
            y.mask.clear();
            const Pairs list = {0, 0, 3, 0, 0, 0, 1, 4, 4, 3, 3, 2, 2, 1};
            const auto found = align(x, y, {-1, -1, 0}, list, 7, DEVICE, what + "packed");
            expect(found.index[0][2] == 0, what + "the decoy");
            align(y, x, {-1, -1, 0}, {3, 3, 0, 4}, 2, DEVICE, what + "swapped");
        }
    }
}

// More than one launch takes: every pair's alignment where it belongs.
void matches_chunks() {
    for (DType dtype : dtypes) {
        Documents x{dtype, 16}, y{dtype, 16};
        for (index_t n : {20, 3, 70, 0, 33}) x.add(n);
        for (index_t m : {5, 66, 2, 40, 31}) y.add(m);
        fill(x, Data::normal, 120);
        fill(y, Data::normal, 121);
        const Pairs list = {4, 0, 0, 4, 2, 3, 3, 1, 1, 2, 2, 1};
        for (const cuda::Limits& limits : {cuda::Limits{2}, {100, 3}, {100, 100, 1400}}) {
            const std::string what = label(dtype, 0, 0, 16, "match chunks ");
            align(x, y, {-1, -1, 0}, list, 6, DEVICE, what + "listed", limits);
            align(x, y, {70, 66, 0}, {}, 5, DEVICE, what + "padded", limits);
        }
    }
}

// Norms out of float's range beside ordinary ones.
void matches_scales() {
    const int exponents[] = {-120, 60, 0, -45, 120, 45};
    for (DType dtype : dtypes) {
        if (dtype == DType::float16) continue; // has no such numbers
        const index_t shapes[][2] = {{30, 72}, {40, 9}, {140, 72}};
        for (const auto& [n, dim] : shapes) {
            Documents x{dtype, dim}, y{dtype, dim};
            for (Documents* side : {&x, &y}) {
                side->add(n);
                side->add(n - 7);
                fill(*side, Data::negative, side == &x ? 130 : 131);
                repeat(*side, 0, 0);
                for (index_t i = 0; i < n; ++i) {
                    for (index_t k = 0; k < dim; ++k) {
                        double& value = side->values[i * dim + k];
                        value = std::ldexp(value, exponents[(i + (side == &x)) % 6]);
                    }
                }
            }
            align(x, y, {-1, -1, 0}, {}, 2, DEVICE, label(dtype, n, n, dim, "match scales"));
        }
    }
}

} // namespace flashbertscore::test
