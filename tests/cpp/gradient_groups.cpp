// The backward pass of the CUDA kernels against its formulas (cpu/backward.cpp) in double, edge by
// edge. Alignments are made up: the kernels take any.
#include <numeric>

#include "cuda/gradient.h"
#include "groups.h"
#include "matching.h"

namespace flashbertscore::test {
namespace {

// Everything that gradients follow from. Of [2], candidates come first.
struct Problem {
    Documents side[2];
    index_t width[2] = {-1, -1}; // padded if >= 0
    index_t pad = 0;
    bool gap = false; // between padded documents
    Pairs pairs{};
    index_t count = 0;
    Matches matches{};
    std::vector<double> mean[2]{}, mean_gradient[2]{}, f1_gradient{}; // [count]
    std::vector<double> similarity_gradient[2]{};                     // as similarities; or empty

    index_t document(int s, index_t p) const { return pairs.empty() ? p : pairs[2 * p + s]; }
    // Rows of a document with its padding, of all documents, and before document d.
    index_t rows(int s, index_t d) const { return width[s] < 0 ? side[s].length(d) : width[s]; }
    index_t first(int s, index_t d) const {
        return width[s] < 0 ? side[s].offsets[d] : d * width[s];
    }
    index_t all_rows(int s) const {
        return first(s, static_cast<index_t>(side[s].offsets.size()) - 1);
    }
};

struct Gradients {
    std::vector<double> tokens[2], weights[2];
};

double weight_of(const Documents& side, index_t row) {
    return side.weights.empty() ? 1 : side.weights[row];
}

// A unit vector; zeros of a vector that has no direction.
std::vector<double> unit(const Documents& side, index_t row, double* norm) {
    std::vector<double> x(&side.values[row * side.dim], &side.values[row * side.dim] + side.dim);
    double squares = 0;
    for (double value : x) squares += value * value;
    *norm = std::sqrt(squares);
    const bool none = squares == 0 || !std::isfinite(squares);
    for (double& value : x) value = none ? 0 : value / *norm;
    return x;
}

// Matches at random, with many edges to few rows, and means from them. `unmatched`: some tokens
// have no match.
Problem make(DType dtype, index_t dim, const std::vector<index_t>& n, const std::vector<index_t>& m,
             const Pairs& pairs, unsigned seed, bool unmatched = false) {
    Problem problem{.side = {{dtype, dim}, {dtype, dim}}};
    for (index_t length : n) problem.side[0].add(length);
    for (index_t length : m) problem.side[1].add(length);
    for (int s = 0; s < 2; ++s) {
        fill(problem.side[s], Data::normal, seed + s);
        weigh(problem.side[s], seed + 2 + s);
    }
    problem.pairs = pairs;
    problem.count = static_cast<index_t>(pairs.empty() ? n.size() : pairs.size() / 2);
    std::mt19937 random(seed);
    for (index_t p = 0; p < problem.count; ++p) {
        for (int s = 0; s < 2; ++s) {
            const index_t d = problem.document(s, p), e = problem.document(1 - s, p);
            const index_t others = problem.side[1 - s].length(e);
            for (index_t i = 0; i < problem.side[s].length(d); ++i) {
                const bool none = others == 0 || (unmatched && random() % 5 == 0);
                const index_t most = random() % 2 ? others : std::min<index_t>(others, 3);
                problem.matches.index[s].push_back(
                    none ? -1 : static_cast<int>(random() % std::max<index_t>(most, 1)));
            }
        }
    }
    return problem;
}

// Similarities and means that belong to the matches, and a loss, as the dtype rounds them.
void complete(Problem& problem, unsigned seed, bool similarities = true) {
    const DType dtype = problem.side[0].dtype, real = real_of(dtype);
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    index_t at[2] = {0, 0};
    for (int s = 0; s < 2; ++s) problem.matches.similarity[s].clear();
    for (index_t p = 0; p < problem.count; ++p) {
        for (int s = 0; s < 2; ++s) {
            const Documents &own = problem.side[s], &other = problem.side[1 - s];
            const index_t d = problem.document(s, p), e = problem.document(1 - s, p);
            double sum = 0, weight = 0;
            for (index_t i = 0; i < problem.rows(s, d); ++i) {
                const int index = problem.matches.index[s][at[s]++];
                const bool edge = index >= 0 && index < other.length(e);
                const double similarity = edge ? test::similarity(own, own.offsets[d] + i, other,
                                                                  other.offsets[e] + index)
                                               : 0;
                problem.matches.similarity[s].push_back(rounded(real, similarity));
                if (similarities) {
                    problem.similarity_gradient[s].push_back(rounded(real, normal(random)));
                }
                if (!edge) continue;
                sum += weight_of(own, own.offsets[d] + i) * similarity;
                weight += weight_of(own, own.offsets[d] + i);
            }
            problem.mean[s].push_back(rounded(real, weight > 0 ? sum / weight : 0));
            problem.mean_gradient[s].push_back(rounded(real, normal(random)));
        }
        problem.f1_gradient.push_back(rounded(real, normal(random)));
    }
}

// Of each result also `size`: what its terms add up to without their signs.
Gradients formulas(const Problem& problem, Gradients* size) {
    Gradients result;
    const index_t dim = problem.side[0].dim;
    for (int s = 0; s < 2; ++s) {
        for (Gradients* to : {&result, size}) {
            to->tokens[s].assign(problem.all_rows(s) * dim, 0);
            to->weights[s].assign(problem.all_rows(s), 0);
        }
    }
    std::vector<double> sums[2] = {result.tokens[0], result.tokens[1]};
    index_t at[2] = {0, 0};
    double norm;
    for (index_t p = 0; p < problem.count; ++p) {
        for (int s = 0; s < 2; ++s) {
            const Documents &own = problem.side[s], &other = problem.side[1 - s];
            const index_t d = problem.document(s, p), e = problem.document(1 - s, p);
            const index_t rows = problem.rows(s, d), base = at[s];
            at[s] += rows;
            const auto index = [&](index_t i) {
                const int j = problem.matches.index[s][base + i];
                return j < problem.rows(1 - s, e) ? j : -1;
            };
            double total = 0;
            for (index_t i = 0; i < rows; ++i) {
                if (index(i) >= 0) total += weight_of(own, own.offsets[d] + i);
            }
            const double mean = problem.mean[s][p], beside = problem.mean[1 - s][p];
            double gradient = 0;
            if (total > 0) {
                gradient = problem.mean_gradient[s][p];
                if (mean + beside != 0 && std::isfinite(mean + beside)) {
                    const double part = beside / (mean + beside);
                    gradient += problem.f1_gradient[p] * 2 * part * part;
                }
            }
            for (index_t i = 0; i < rows; ++i) {
                if (index(i) < 0) continue;
                const index_t here = own.offsets[d] + i, there = other.offsets[e] + index(i);
                const index_t row = problem.first(s, d) + i,
                              match = problem.first(1 - s, e) + index(i);
                double q = 0;
                if (gradient != 0) {
                    const double similarity = problem.matches.similarity[s][base + i];
                    q = gradient * weight_of(own, here) / total;
                    result.weights[s][row] += gradient * (similarity - mean) / total;
                    size->weights[s][row] += std::fabs(gradient / total);
                }
                if (!problem.similarity_gradient[s].empty()) {
                    q += problem.similarity_gradient[s][base + i];
                }
                const auto x = unit(own, here, &norm), y = unit(other, there, &norm);
                for (index_t k = 0; k < dim; ++k) {
                    sums[s][row * dim + k] += q * y[k];
                    sums[1 - s][match * dim + k] += q * x[k];
                    size->tokens[s][row * dim + k] += std::fabs(q);
                    size->tokens[1 - s][match * dim + k] += std::fabs(q);
                }
            }
        }
    }
    for (int s = 0; s < 2; ++s) {
        const Documents& own = problem.side[s];
        for (index_t d = 0; d + 1 < static_cast<index_t>(own.offsets.size()); ++d) {
            for (index_t i = 0; i < own.length(d); ++i) {
                const auto x = unit(own, own.offsets[d] + i, &norm);
                const index_t row = (problem.first(s, d) + i) * dim;
                const double along = std::inner_product(x.begin(), x.end(), &sums[s][row], 0.0);
                const bool direction = norm > 0 && std::isfinite(norm);
                for (index_t k = 0; k < dim; ++k) {
                    result.tokens[s][row + k] =
                        direction ? (sums[s][row + k] - along * x[k]) / norm : 0;
                    size->tokens[s][row + k] *= direction ? 1 / norm : 0;
                }
            }
        }
    }
    return result;
}

// What is not wanted is left empty.
Gradients run(const Problem& problem, const cuda::Device& device, bool tokens, bool weights) {
    const DType dtype = problem.side[0].dtype, real = real_of(dtype);
    const std::size_t size = bytes_of(real);
    Twins twins;
    TokenBatch batch[2];
    for (int s = 0; s < 2; ++s) {
        batch[s] = view(problem.side[s], problem.width[s], problem.pad);
        if (!problem.gap) continue;
        const TokenBatch wider = view(problem.side[s], problem.width[s] + 1, problem.pad);
        batch[s].data = wider.data;
        batch[s].document_stride = wider.document_stride;
    }
    const TokenBatch at[2] = {there(twins, batch[0]), there(twins, batch[1])};
    const PairList list = {problem.pairs.empty() ? nullptr : problem.pairs.data(), problem.count};
    const auto given = [&](const std::vector<double>& values) {
        return values.empty() ? nullptr : twins.of(reals(dtype, values));
    };
    const auto exactly = [&](const std::vector<double>& values) { // an address even of nothing
        return twins.of(reals(dtype, values));
    };
    const std::int32_t* index[2];
    const void* similarity[2];
    cuda::GradientSide edges[2];
    int* keys[2];
    for (int s = 0; s < 2; ++s) {
        const auto& from = problem.matches.index[s];
        auto* const host = reinterpret_cast<std::int32_t*>(buffer(from.size() * 4));
        std::copy(from.begin(), from.end(), host);
        index[s] = twins.of(host);
        similarity[s] = exactly(problem.matches.similarity[s]);
        const auto own = static_cast<index_t>(from.size());
        const auto other = static_cast<index_t>(problem.matches.index[1 - s].size());
        keys[s] = reinterpret_cast<int*>(unwritten((own + other) * 4));
        edges[s] = {twins.of(keys[s]),
                    twins.scratch(own * size),
                    static_cast<double*>(twins.scratch(own * 8)),
                    static_cast<double*>(twins.scratch(problem.all_rows(s) * 8)),
                    own,
                    other};
    }
    const Alignment alignment = {index[0], similarity[0], index[1], similarity[1]};
    const ScoreGradient gradient = {exactly(problem.mean_gradient[0]),
                                    exactly(problem.mean_gradient[1]), exactly(problem.f1_gradient),
                                    given(problem.similarity_gradient[0]),
                                    given(problem.similarity_gradient[1])};
    void* workspace = twins.scratch(cuda::gradient_workspace(at[0], at[1], list));
    cuda::gradient_edges(at[0], at[1], list, exactly(problem.mean[0]), exactly(problem.mean[1]),
                         alignment, gradient, edges, workspace, device, nullptr);
    Gradients result;
    for (int s = 0; s < 2; ++s) {
        // What torch does between the two: a stable sort, and where each row's edges begin.
        twins.fetch(reinterpret_cast<char*>(keys[s]));
        const index_t count = edges[s].own + edges[s].other, rows = problem.all_rows(s);
        auto* const order = reinterpret_cast<index_t*>(buffer(count * 8));
        auto* const start = reinterpret_cast<index_t*>(buffer((rows + 1) * 8));
        std::iota(order, order + count, index_t{0});
        std::stable_sort(order, order + count,
                         [&](index_t a, index_t b) { return keys[s][a] < keys[s][b]; });
        for (index_t row = 0; row <= rows; ++row) {
            start[row] = std::partition_point(order, order + count,
                                              [&](index_t e) { return keys[s][e] < row; }) -
                         order;
        }
        const index_t elements = tokens ? rows * problem.side[s].dim : 0;
        char* const token_out = unwritten(elements * bytes_of(dtype));
        char* const weight_out = unwritten(weights ? rows * size : 0);
        cuda::gradient_rows(at[s], at[1 - s], edges[s], edges[1 - s], similarity[s],
                            similarity[1 - s], twins.of(order), twins.of(start),
                            tokens ? twins.of(token_out) : nullptr,
                            weights ? twins.of(weight_out) : nullptr, device, nullptr);
        if (tokens) {
            twins.fetch(token_out);
            result.tokens[s] = decoded(dtype, token_out, elements);
        }
        if (weights) {
            twins.fetch(weight_out);
            result.weights[s] = decoded(real, weight_out, rows);
        }
    }
    return result;
}

void expect_values(const std::vector<double>& got, const std::vector<double>& want,
                   const std::vector<double>& size, double bound, double least,
                   const std::string& what) {
    expect(got.size() == want.size(), what + ": results");
    for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
        // NaN is not close. What may leave the range of float is not looked at.
        if (std::fabs(got[i] - want[i]) <= bound * size[i] + least || size[i] > 1e38) {
            ++checks;
            continue;
        }
        char text[120];
        std::snprintf(text, sizeof text, " at %zu: expected %.9g, got %.9g", i, want[i], got[i]);
        expect(false, what + text);
    }
}

const cuda::Device LARGE = {40, 227 * 1024};

Gradients differentiate(const Problem& problem, const std::string& what) {
    const DType dtype = problem.side[0].dtype;
    Gradients size;
    const Gradients want = formulas(problem, &size);
    const Gradients got = run(problem, DEVICE, true, true);
    const double sums = dtype == DType::float64 ? 1e-13 : 1e-6;
    // Results are rounded to the dtype: bfloat16 has 8 bits, float16 11 and nothing below 2^-24.
    const double half = dtype == DType::bfloat16 ? 0x1p-8 : dtype == DType::float16 ? 0x1p-11 : 0;
    const double least = dtype == DType::float16 ? 0x1p-25 : 0;
    for (int s = 0; s < 2; ++s) {
        const std::string side = what + (s ? " reference" : " candidate");
        expect_values(got.tokens[s], want.tokens[s], size.tokens[s], sums + half, least,
                      side + " tokens");
        expect_values(got.weights[s], want.weights[s], size.weights[s], sums, 0, side + " weights");
    }
    return got;
}

// And the same bits on a larger device, and where only one kind of gradient is wanted.
void differentiate_in_parts(const Problem& problem, const std::string& what) {
    const Gradients all = differentiate(problem, what);
    const Gradients tokens = run(problem, LARGE, true, false);
    const Gradients weights = run(problem, LARGE, false, true);
    for (int s = 0; s < 2; ++s) {
        expect(tokens.tokens[s] == all.tokens[s], what + ": other bits of tokens");
        expect(weights.weights[s] == all.weights[s], what + ": other bits of weights");
    }
}

} // namespace

// Once through the kernels in each layout, short enough for the slowest sanitizer. Every token has
// a match, so lists of edges end with their buffers.
void gradient_tour() {
    for (DType dtype : dtypes) {
        const std::string what = label(dtype, 0, 0, 40, "gradient");
        Problem one = make(dtype, 40, {20, 5}, {17, 30}, {}, 200);
        complete(one, 201);
        differentiate(one, what);
        Problem listed = make(dtype, 9, {20, 5, 7}, {17, 30}, {0, 1, 2, 0, 0, 0, 2, 0}, 202);
        complete(listed, 203);
        differentiate(listed, what + " listed"); // candidate 1 is in no pair
        Problem padded = make(dtype, 40, {20, 20}, {17, 17}, {}, 204);
        padded.width[0] = 20;
        padded.width[1] = 17;
        padded.pad = 3;
        complete(padded, 205);
        differentiate(padded, what + " padded");
    }
}

// Around the threads of a block, the lanes of a warp, and the elements that it takes at a time.
void gradient_edges() {
    const index_t lengths[] = {1, 3, 4, 5, 127, 128, 129, 257},
                  dims[] = {1, 7, 31, 32, 33, 127, 128, 129, 385};
    for (DType dtype : dtypes) {
        for (int turn = 0; turn < 16; ++turn) {
            const index_t n = lengths[turn % 8], m = lengths[(turn * 3 + 1) % 8];
            Problem problem = make(dtype, dims[turn % 9], {n}, {m}, {}, 210 + turn, turn % 2 == 1);
            complete(problem, 211 + turn, turn % 3 != 0);
            differentiate_in_parts(problem, label(dtype, n, m, dims[turn % 9], "gradient edge"));
        }
    }
}

// Padding, zeros, NaN, sides without tokens, weights or matches, F where P + R = 0.
void gradient_cases() {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (DType dtype : dtypes) {
        const index_t dim = 12;
        const std::vector<index_t> n = {6, 5, 0, 4, 3, 7}, m = {4, 6, 5, 3, 5, 6};
        Problem problem =
            make(dtype, dim, n, m, {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 1, 0, 0, 2}, 220, true);
        const auto entry = [&](int s, index_t p) { // of pair p's first token
            index_t at = 0;
            for (index_t q = 0; q < p; ++q) {
                at += problem.side[s].length(problem.document(s, q));
            }
            return at;
        };
        Documents &x = problem.side[0], &y = problem.side[1];
        // Pair 0: two zero vectors that meet, one that meets others.
        std::fill_n(&x.values[1 * dim], dim, 0.0);
        std::fill_n(&y.values[2 * dim], dim, 0.0);
        problem.matches.index[0][1] = 2;
        problem.matches.index[0][3] = 2;
        // Pair 1: a row of NaN that no edge leads to. Pair 3: no match at all.
        const auto unmatched = [&](int s, index_t p, int row, int instead) {
            const index_t at = entry(s, p), end = entry(s, p + 1);
            std::replace(problem.matches.index[s].begin() + at,
                         problem.matches.index[s].begin() + end, row, instead);
        };
        const index_t bad = x.offsets[1] + 4;
        x.values[bad * dim + 3] = nan;
        for (index_t p : {1, 6}) {
            unmatched(1, p, 4, 0);
            problem.matches.index[0][entry(0, p) + 4] = -1;
        }
        for (int s = 0; s < 2; ++s) {
            const auto begin = problem.matches.index[s].begin() + entry(s, 3);
            std::fill(begin, problem.matches.index[s].begin() + entry(s, 4), -1);
        }
        // Pair 4: no weight on one side. Pair 5: a place beyond the other document.
        std::fill(&x.weights[x.offsets[4]], &x.weights[x.offsets[5]], 0.0);
        problem.matches.index[0][entry(0, 5) + 2] = 6;
        problem.matches.index[1][entry(1, 5) + 5] = std::numeric_limits<int>::max();
        complete(problem, 221);
        problem.mean[0][5] = 0.25; // P + R = 0
        problem.mean[1][5] = -0.25;
        problem.mean[0][3] = problem.mean[1][3] = nan;
        const std::string what = label(dtype, 0, 0, dim, "gradient cases");
        differentiate_in_parts(problem, what);

        // Padding: rows without a match, whose values are NaN.
        Problem padded = make(dtype, dim, {3, 5, 0}, {4, 2, 6}, {}, 222);
        for (int s = 0; s < 2; ++s) {
            padded.width[s] = 7 + s;
            std::vector<int> index;
            auto from = padded.matches.index[s].begin();
            for (index_t d = 0; d < 3; ++d) {
                const index_t length = padded.side[s].length(d);
                index.insert(index.end(), from, from + length);
                index.insert(index.end(), 7 + s - length, -1);
                from += length;
            }
            padded.matches.index[s] = index;
        }
        padded.gap = true;
        complete(padded, 223);
        differentiate_in_parts(padded, what + " padded");
    }
}

// Norms whose squares or inverses are out of float's range beside ordinary ones.
void gradient_scales() {
    const int exponents[] = {-130, 60, 0, -45, 100, 45};
    for (DType dtype : dtypes) {
        if (dtype == DType::float16) continue; // has no such numbers
        Problem problem = make(dtype, 40, {20, 9}, {17, 30}, {}, 230);
        for (Documents& side : problem.side) {
            for (index_t i = 0; i < side.offsets.back(); ++i) {
                for (index_t k = 0; k < side.dim; ++k) {
                    double& value = side.values[i * side.dim + k];
                    value = rounded(dtype, std::ldexp(value, exponents[i % 6]));
                }
            }
        }
        complete(problem, 231);
        differentiate(problem, label(dtype, 0, 0, 40, "gradient scales"));
    }
}

} // namespace flashbertscore::test
