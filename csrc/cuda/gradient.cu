#include "cuda/gradient.cuh"

#include <limits>
#include <vector>

namespace flashbertscore::cuda {
namespace {

RowAddress address_of(const TokenBatch& side) {
    return {side.data, side.row_stride, side.document_stride, side.offsets ? 0 : side.width};
}

// Calls `body` with an element type and the type computed in.
template <class Body>
void by_dtype(DType dtype, const Body& body) {
    switch (dtype) {
    case DType::bfloat16: return body(Bfloat16{}, 0.0f);
    case DType::float16: return body(Float16{}, 0.0f);
    case DType::float32: return body(Float32{}, 0.0f);
    case DType::float64: return body(Float64{}, 0.0);
    }
}

bool listed(const TokenBatch& candidate, const TokenBatch& reference, const PairList& pairs) {
    return candidate.offsets || reference.offsets || pairs.pairs;
}

void require_int(const char* what, index_t value) {
    if (value >= std::numeric_limits<int>::max()) {
        throw std::invalid_argument(std::string(what) + ": expected fewer than 2^31 - 1, got " +
                                    std::to_string(value));
    }
}

} // namespace

std::size_t gradient_workspace(const TokenBatch& candidate, const TokenBatch& reference,
                               const PairList& pairs) {
    return listed(candidate, reference, pairs) ? pairs.count * sizeof(GradientTask) : 0;
}

void gradient_edges(const TokenBatch& candidate, const TokenBatch& reference, const PairList& pairs,
                    const void* precision, const void* recall, const Alignment& alignment,
                    const ScoreGradient& gradient, const GradientSide (&sides)[2], void* workspace,
                    const Device& device, Stream stream) {
    require_int("rows of candidate", candidate.rows());
    require_int("rows of reference", reference.rows());
    require_int("tokens of all pairs", sides[0].own + sides[0].other);
    const GradientTask* tasks = nullptr;
    if (listed(candidate, reference, pairs)) {
        std::vector<GradientTask> list(static_cast<std::size_t>(pairs.count));
        index_t base[2] = {0, 0};
        for (index_t p = 0; p < pairs.count; ++p) {
            const index_t c = pairs.candidate(p), r = pairs.reference(p);
            const index_t n = candidate.length(c), m = reference.length(r);
            list[static_cast<std::size_t>(p)] = {{candidate.first(c), reference.first(r)},
                                                 {base[0], base[1]},
                                                 {static_cast<int>(n), static_cast<int>(m)}};
            base[0] += n;
            base[1] += m;
        }
        copy_to_device(workspace, list.data(), list.size() * sizeof(GradientTask), stream);
        tasks = static_cast<const GradientTask*>(workspace);
    }
    const int dim = static_cast<int>(candidate.dim);
    by_dtype(candidate.dtype, [&](auto element, auto real) {
        using E = decltype(element);
        using Real = decltype(real);
        const TokenBatch* batches[2] = {&candidate, &reference};
        for (int s = 0; s < 2; ++s) {
            const index_t rows = batches[s]->rows();
            launch<gradient_norms<E>>(device, (rows + GRADIENT_WARPS - 1) / GRADIENT_WARPS,
                                      GRADIENT_THREADS, 0, stream, address_of(*batches[s]), rows,
                                      dim, sides[s].inverse);
        }
        const GradientInputs x = {alignment.candidate_index,
                                  alignment.candidate_similarity,
                                  gradient.candidate_similarity,
                                  precision,
                                  gradient.precision,
                                  candidate.weights,
                                  sides[0],
                                  candidate.rows()};
        const GradientInputs y = {alignment.reference_index,
                                  alignment.reference_similarity,
                                  gradient.reference_similarity,
                                  recall,
                                  gradient.recall,
                                  reference.weights,
                                  sides[1],
                                  reference.rows()};
        const auto coefficients = [&]<int S>(const GradientInputs& own,
                                             const GradientInputs& other) {
            launch<gradient_coefficients<Real, S>>(
                device, pairs.count, GRADIENT_THREADS, GRADIENT_WARPS * sizeof(double), stream, own,
                other, gradient.f1, tasks, pairs.count, candidate.width, reference.width);
        };
        coefficients.template operator()<0>(x, y);
        coefficients.template operator()<1>(y, x);
    });
}

void gradient_rows(const TokenBatch& own, const TokenBatch& other, const GradientSide& own_edges,
                   const GradientSide& other_edges, const void* own_similarity,
                   const void* other_similarity, const index_t* order, const index_t* start,
                   void* tokens, void* weights, const Device& device, Stream stream) {
    const GradientRows all = {address_of(own), address_of(other),         own_edges, other_edges,
                              own_similarity,  other_similarity,          order,     start,
                              own.rows(),      static_cast<int>(own.dim), tokens,    weights};
    by_dtype(own.dtype, [&](auto element, auto real) {
        using E = decltype(element);
        using Real = decltype(real);
        launch<gradient_gather<E, Real>>(device, (all.rows + GRADIENT_WARPS - 1) / GRADIENT_WARPS,
                                         GRADIENT_THREADS, 0, stream, all);
    });
}

} // namespace flashbertscore::cuda
