// The backward pass. A match is an edge between a row of the candidates and a row of the
// references: token i of a candidate has one to its best match a(i), token j of a reference one to
// b(j). With the weight q of an edge in the loss, its similarity s, and the unit vectors x^, y^,
//
//   G_i = sum over the edges of x_i of q y^        t_i = <G_i, x^_i> = sum of q s
//   dx_i = (G_i - t_i x^_i) / |x_i|                and the same for y
//
//   q = (gP + gF 2 R^2 / (P + R)^2) w_i / sum w + gs_i   for the edge of candidate token i
//   q = (gR + gF 2 P^2 / (P + R)^2) v_j / sum v + gs_j   for the edge of reference token j
//
// where g are the incoming gradients. Edges are sorted by row with a counting sort, so each row is
// summed by one thread in one order: no atomics, the same bits whatever the threads.
#include "cpu/backward.h"

#include "core/numeric.h"
#include "core/parallel.h"
#include "cpu/tiles.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace flashbertscore {
namespace {

// An edge moves memory where a multiply-add of the forward pass does not: it takes the time of so
// many of them.
constexpr double kPassesPerEdge = 8.0;

std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

// What the tokens of a side of one pair weigh in the loss.
struct Share {
    double gradient; // of the mean, gP or gR with the part of F
    double mean;     // P or R
    double total;    // sum of weights
};

template <class T>
struct Edge {
    index_t row;  // of the other side
    T weight;     // q
    T similarity; // s
};

// One side, read once more: inverse norms.
template <class T>
class TokenRows {
  public:
    TokenRows(const TokenBatch& batch, const Kernels<T>& kernels)
        : batch_(batch), kernels_(kernels), inverse_(at(batch.rows())) {}

    void prepare(index_t begin, index_t end) {
        for (index_t row = begin; row < end; ++row) { inverse_[at(row)] = inverse_norm(row); }
    }

    // 0 for a zero vector, and for one that is not finite: no edge reaches that.
    double inverse(index_t row) const { return inverse_[at(row)]; }

    // Whether products with the inverse norm fit into T.
    bool ordinary(index_t row) const {
        constexpr double most = std::is_same_v<T, float> ? 0x1p+60 : 0x1p+500;
        return inverse(row) < most && (inverse(row) > 1.0 / most || inverse(row) == 0.0);
    }

    // The row in T: where it lies, or converted into scratch[dim].
    const T* read(index_t row, T* scratch) const {
        constexpr DType own = std::is_same_v<T, float> ? DType::float32 : DType::float64;
        if (batch_.dtype == own) { return static_cast<const T*>(address(row)); }
        kernels_.convert(address(row), batch_.dtype, batch_.dim, scratch);
        return scratch;
    }

    const TokenBatch& batch() const { return batch_; }

  private:
    const void* address(index_t row) const {
        const index_t element = batch_.offsets ? row * batch_.row_stride
                                               : row / batch_.width * batch_.document_stride +
                                                     row % batch_.width * batch_.row_stride;
        return static_cast<const char*>(batch_.data) + element * element_bytes(batch_.dtype);
    }

    double inverse_norm(index_t row) const {
        const void* x = address(row);
        T squares;
        kernels_.squares(&x, 1, batch_.dtype, batch_.dim, &squares);
        if (flashbertscore::ordinary(squares)) {
            return 1.0 / std::sqrt(static_cast<double>(squares));
        }
        double most = 0.0; // beyond what squares in T can tell
        for (index_t k = 0; k < batch_.dim; ++k) {
            const double size = std::fabs(static_cast<double>(element<T>(x, batch_.dtype, k)));
            if (!std::isfinite(size)) { return 0.0; }
            most = std::max(most, size);
        }
        if (most == 0.0) { return 0.0; }
        double sum = 0.0;
        for (index_t k = 0; k < batch_.dim; ++k) {
            const double part = static_cast<double>(element<T>(x, batch_.dtype, k)) / most;
            sum += part * part;
        }
        return 1.0 / most / std::sqrt(sum);
    }

    TokenBatch batch_;
    const Kernels<T>& kernels_;
    std::vector<double> inverse_; // [rows]
};

template <class T>
class Backward {
  public:
    Backward(const TokenBatch& candidate, const TokenBatch& reference, const PairList& pairs,
             const void* precision, const void* recall, const Alignment& alignment,
             const ScoreGradient& gradient, const Kernels<T>& kernels, int threads)
        : candidate_(candidate, kernels), reference_(reference, kernels), pairs_(pairs),
          threads_(threads) {
        // The sides are told apart by what is first here, so that each is computed as the other is.
        sides_[0] = {&candidate_,
                     alignment.candidate_index,
                     static_cast<const T*>(alignment.candidate_similarity),
                     static_cast<const T*>(gradient.candidate_similarity),
                     static_cast<const T*>(precision),
                     static_cast<const T*>(gradient.precision),
                     {},
                     {}};
        sides_[1] = {&reference_,
                     alignment.reference_index,
                     static_cast<const T*>(alignment.reference_similarity),
                     static_cast<const T*>(gradient.reference_similarity),
                     static_cast<const T*>(recall),
                     static_cast<const T*>(gradient.recall),
                     {},
                     {}};
        for (int side = 0; side < 2; ++side) { share(side, static_cast<const T*>(gradient.f1)); }
        for (Side& side : sides_) {
            const index_t rows = side.rows->batch().rows();
            run(rows, static_cast<double>(rows),
                [&](index_t begin, index_t end) { side.rows->prepare(begin, end); });
        }
    }

    void tokens(int side, void* out) const;
    void weights(int side, T* out) const;

  private:
    struct Side {
        TokenRows<T>* rows;
        const std::int32_t* index;
        const T* similarity;
        const T* similarity_gradient;
        const T* mean;
        const T* mean_gradient;
        std::vector<index_t> base; // [count + 1] where a pair's alignment begins
        std::vector<Share> shares; // [count]
    };

    index_t document(int side, index_t p) const {
        return side == 0 ? pairs_.candidate(p) : pairs_.reference(p);
    }
    double token_weight(int side, index_t row) const {
        const void* weights = sides_[side].rows->batch().weights;
        return weights ? static_cast<double>(static_cast<const T*>(weights)[row]) : 1.0;
    }
    // d loss / d similarity of token i of pair p.
    double edge_weight(int side, index_t p, index_t i) const {
        const Side& own = sides_[side];
        const Share& share = own.shares[at(p)];
        const index_t token = own.base[at(p)] + i;
        double weight = 0.0;
        if (share.gradient != 0.0) {
            const index_t row = own.rows->batch().first(document(side, p)) + i;
            weight = share.gradient * token_weight(side, row) / share.total;
        }
        if (own.similarity_gradient) {
            weight += static_cast<double>(own.similarity_gradient[token]);
        }
        return weight;
    }

    template <class Body>
    void run(index_t count, double rows_of_work, const Body& body) const {
        const double work = rows_of_work * static_cast<double>(candidate_.batch().dim);
        const int workers = useful_threads(work, threads_);
        WorkQueue queue(count, 1 + count / (16 * workers));
        run_workers(workers, [&](int) {
            for (index_t begin, end; queue.take(begin, end);) { body(begin, end); }
        });
    }

    void share(int side, const T* f1_gradient);
    // Calls visit(row, edge) for all edges of a side: those of its own tokens, then those of the
    // tokens of the other side that matched one of them.
    template <class Visit>
    void visit_edges(int side, const Visit& visit) const;

    TokenRows<T> candidate_;
    TokenRows<T> reference_;
    PairList pairs_;
    int threads_;
    Side sides_[2];
};

// Means that are no mean (no token, no weight, a document that is not finite, P + R = 0 for F) have
// the gradient 0.
template <class T>
void Backward<T>::share(int side, const T* f1_gradient) {
    Side& own = sides_[side];
    const Side& other = sides_[1 - side];
    own.base.assign(1, 0);
    for (index_t p = 0; p < pairs_.count; ++p) {
        const index_t d = document(side, p), length = own.rows->batch().length(d);
        const index_t most = other.rows->batch().length(document(1 - side, p));
        const index_t base = own.base.back();
        Share share{0.0, static_cast<double>(own.mean[p]), 0.0};
        for (index_t i = 0; i < length; ++i) {
            const std::int32_t match = own.index[base + i];
            if (match < -1 || match >= most) {
                throw std::invalid_argument(std::string(side == 0 ? "candidate" : "reference") +
                                            "_index: expected values in [-1, " +
                                            std::to_string(most) + "), got " +
                                            std::to_string(match));
            }
            if (match >= 0) { share.total += token_weight(side, own.rows->batch().first(d) + i); }
        }
        if (share.total > 0.0) {
            share.gradient = static_cast<double>(own.mean_gradient[p]);
            const double sum = share.mean + static_cast<double>(other.mean[p]);
            if (sum != 0.0 && std::isfinite(sum)) {
                const double part = static_cast<double>(other.mean[p]) / sum;
                share.gradient += static_cast<double>(f1_gradient[p]) * 2.0 * part * part;
            }
        }
        own.shares.push_back(share);
        own.base.push_back(base + length);
    }
}

template <class T>
template <class Visit>
void Backward<T>::visit_edges(int side, const Visit& visit) const {
    for (const int from : {side, 1 - side}) {
        const Side& own = sides_[from];
        for (index_t p = 0; p < pairs_.count; ++p) {
            const index_t here = own.rows->batch().first(document(from, p));
            const index_t there = sides_[1 - from].rows->batch().first(document(1 - from, p));
            const index_t base = own.base[at(p)], length = own.base[at(p + 1)] - base;
            for (index_t i = 0; i < length; ++i) {
                if (own.index[base + i] < 0) { continue; }
                const index_t match = there + own.index[base + i];
                const index_t row = from == side ? here + i : match;
                const index_t source = from == side ? match : here + i;
                visit(row, source, from, p, i);
            }
        }
    }
}

template <class T>
void add(T* __restrict sum, const T* __restrict row, T factor, index_t dim) {
    for (index_t k = 0; k < dim; ++k) { sum[k] += factor * row[k]; }
}

// sum = factor row: the first edge of most rows.
template <class T>
void set(T* __restrict sum, const T* __restrict row, T factor, index_t dim) {
    for (index_t k = 0; k < dim; ++k) { sum[k] = T(0) + factor * row[k]; }
}

// out = (sum + factor row) scale
template <class T>
void conclude(const T* sum, const T* __restrict row, T factor, T scale, index_t dim,
              T* __restrict out) {
    for (index_t k = 0; k < dim; ++k) { out[k] = (sum[k] + factor * row[k]) * scale; }
}

// The same for a factor beyond T.
template <class T>
void add_far(T* sum, const T* row, double factor, index_t dim) {
    for (index_t k = 0; k < dim; ++k) {
        sum[k] += static_cast<T>(factor * static_cast<double>(row[k]));
    }
}

template <class T>
void store(const T* row, DType dtype, index_t dim, index_t index, void* out) {
    switch (dtype) {
    case DType::float64:
    case DType::float32: return; // written where it belongs
    case DType::bfloat16:
        for (index_t k = 0; k < dim; ++k) {
            static_cast<std::uint16_t*>(out)[index * dim + k] =
                float_to_bfloat16(static_cast<float>(row[k]));
        }
        return;
    case DType::float16:
        for (index_t k = 0; k < dim; ++k) {
            static_cast<std::uint16_t*>(out)[index * dim + k] =
                float_to_float16(static_cast<float>(row[k]));
        }
        return;
    }
}

template <class T>
void Backward<T>::tokens(int side, void* out) const {
    const TokenRows<T>& own = *sides_[side].rows;
    const TokenRows<T>& other = *sides_[1 - side].rows;
    const index_t rows = own.batch().rows(), dim = own.batch().dim;
    std::vector<index_t> end(at(rows + 1), 0); // of a row's edges; while counting, one place on
    visit_edges(side, [&](index_t row, index_t, int, index_t, index_t) { ++end[at(row + 1)]; });
    for (index_t row = 0; row < rows; ++row) { end[at(row + 1)] += end[at(row)]; }
    std::vector<Edge<T>> edges(at(end[at(rows)]));
    visit_edges(side, [&](index_t row, index_t source, int from, index_t p, index_t i) {
        edges[at(end[at(row)]++)] = {source, static_cast<T>(edge_weight(from, p, i)),
                                     sides_[from].similarity[sides_[from].base[at(p)] + i]};
    });
    const bool direct = own.batch().dtype == DType::float32 || own.batch().dtype == DType::float64;
    const double work = static_cast<double>(edges.size() + at(rows)) * kPassesPerEdge;
    run(rows, work, [&](index_t first, index_t last) {
        std::vector<T> sums(at(dim)), scratch(at(dim)), results(direct ? 0 : at(dim));
        T* const sum = sums.data();
        for (index_t row = first; row < last; ++row) {
            T* const result = direct ? static_cast<T*>(out) + row * dim : results.data();
            const double inverse = own.inverse(row);
            bool empty = true;
            double along = 0.0; // t
            for (index_t e = row == 0 ? 0 : end[at(row - 1)]; e < end[at(row)]; ++e) {
                const Edge<T>& edge = edges[at(e)];
                const double factor = static_cast<double>(edge.weight) * other.inverse(edge.row);
                along += static_cast<double>(edge.weight) * static_cast<double>(edge.similarity);
                if (factor == 0.0 || inverse == 0.0) { continue; }
                const T* source = other.read(edge.row, scratch.data());
                if (!other.ordinary(edge.row)) {
                    if (empty) { std::fill(sums.begin(), sums.end(), T(0)); }
                    add_far(sum, source, factor, dim);
                } else if (empty) {
                    set(sum, source, static_cast<T>(factor), dim);
                } else {
                    add(sum, source, static_cast<T>(factor), dim);
                }
                empty = false;
            }
            if (empty) {
                std::fill(result, result + dim, T(0));
            } else {
                const T* x = own.read(row, scratch.data());
                if (own.ordinary(row)) {
                    conclude(sum, x, static_cast<T>(-along * inverse), static_cast<T>(inverse), dim,
                             result);
                } else {
                    add_far(sum, x, -along * inverse, dim);
                    for (index_t k = 0; k < dim; ++k) {
                        result[k] = static_cast<T>(static_cast<double>(sum[k]) * inverse);
                    }
                }
            }
            if (!direct) { store(result, own.batch().dtype, dim, row, out); }
        }
    });
}

// d mean / d w_i = (s_i - mean) / sum w.
template <class T>
void Backward<T>::weights(int side, T* out) const {
    const Side& own = sides_[side];
    std::vector<double> sum(at(own.rows->batch().rows()), 0.0);
    for (index_t p = 0; p < pairs_.count; ++p) {
        const Share& share = own.shares[at(p)];
        const index_t base = own.base[at(p)], length = own.base[at(p + 1)] - base;
        const index_t first = own.rows->batch().first(document(side, p));
        for (index_t i = 0; i < length && share.gradient != 0.0; ++i) {
            if (own.index[base + i] < 0) { continue; }
            const double above = static_cast<double>(own.similarity[base + i]) - share.mean;
            sum[at(first + i)] += share.gradient * above / share.total;
        }
    }
    for (std::size_t i = 0; i < sum.size(); ++i) { out[i] = static_cast<T>(sum[i]); }
}

template <class T>
void backward(const TokenBatch& candidate, const TokenBatch& reference, const PairList& pairs,
              const void* precision, const void* recall, const Alignment& alignment,
              const ScoreGradient& gradient, const GradientOut& out, int threads,
              const Kernels<T>& kernels) {
    const Backward<T> pass(candidate, reference, pairs, precision, recall, alignment, gradient,
                           kernels, threads);
    if (out.candidate) { pass.tokens(0, out.candidate); }
    if (out.reference) { pass.tokens(1, out.reference); }
    if (out.candidate_weights) { pass.weights(0, static_cast<T*>(out.candidate_weights)); }
    if (out.reference_weights) { pass.weights(1, static_cast<T*>(out.reference_weights)); }
}

} // namespace

void match_backward(const TokenBatch& candidate, const TokenBatch& reference, const PairList& pairs,
                    const void* precision, const void* recall, const Alignment& alignment,
                    const ScoreGradient& gradient, const GradientOut& out, int threads,
                    const Isa& isa) {
    if (candidate.dtype == DType::float64) {
        backward<double>(candidate, reference, pairs, precision, recall, alignment, gradient, out,
                         threads, *isa.float64);
    } else {
        backward<float>(candidate, reference, pairs, precision, recall, alignment, gradient, out,
                        threads, *isa.float32);
    }
}

} // namespace flashbertscore
