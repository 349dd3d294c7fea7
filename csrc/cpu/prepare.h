// One reading of every token before any pair is matched: its inverse norm, which rows are tokens at
// all, and whether a document holds a NaN or Inf. O(tokens) memory, nothing of size dim.
#pragma once

#include "core/numeric.h"
#include "core/parallel.h"
#include "core/views.h"
#include "cpu/isa.h"

#include <cmath>
#include <vector>

namespace flashbertscore {

// One side of the match. T: the type computed in.
template <class T>
class Documents {
  public:
    Documents(const TokenBatch& batch, const Kernels<T>& kernels)
        : batch_(batch), kernels_(kernels),
          inverse_norm_(static_cast<std::size_t>(batch.rows()), T(0)),
          count_(static_cast<std::size_t>(batch.documents), 0),
          finite_(static_cast<std::size_t>(batch.documents), 1) {
        if (batch.mask) { position_.resize(static_cast<std::size_t>(batch.rows())); }
    }

    // Reads document d. Different documents may be prepared by different threads.
    void prepare(index_t d);

    // Number of tokens of document d: its rows without the masked ones.
    index_t count(index_t d) const { return count_[static_cast<std::size_t>(d)]; }
    bool finite(index_t d) const { return finite_[static_cast<std::size_t>(d)] != 0; }

    // Weight of token i of document d.
    double weight(index_t d, index_t i) const {
        if (!batch_.weights) { return 1.0; }
        const index_t at = batch_.first(d) + row(d, i);
        return static_cast<double>(static_cast<const T*>(batch_.weights)[at]);
    }

    // Writes token i of document d as a unit vector (zero stays zero) to out[dim].
    void unit(index_t d, index_t i, T* out) const;

    const TokenBatch& batch() const { return batch_; }

  private:
    // Norms beyond these bounds lose bits in T on the way to a unit vector; such rows are first
    // scaled by their largest element, in double.
    static constexpr double kSmall = 0x1p-100;
    static constexpr double kLarge = 0x1p+100;
    static constexpr T kRescale = T(-1); // in place of an inverse norm

    // Row of token i of document d within the document.
    index_t row(index_t d, index_t i) const {
        return batch_.mask ? position_[static_cast<std::size_t>(batch_.first(d) + i)] : i;
    }
    const void* data(index_t d, index_t row) const {
        const index_t bytes = batch_.dtype == DType::float64   ? 8
                              : batch_.dtype == DType::float32 ? 4
                                                               : 2;
        return static_cast<const char*>(batch_.data) + batch_.element(d, row) * bytes;
    }
    double largest(const void* row) const;

    TokenBatch batch_;
    const Kernels<T>& kernels_;
    std::vector<T> inverse_norm_;   // [rows]
    std::vector<index_t> position_; // [rows] if masked: rows of the tokens of d from first(d) on
    std::vector<index_t> count_;    // [documents]
    std::vector<char> finite_;      // [documents]
};

template <class T>
double Documents<T>::largest(const void* row) const {
    double most = 0.0;
    for (index_t k = 0; k < batch_.dim; ++k) {
        const double size = std::fabs(static_cast<double>(element<T>(row, batch_.dtype, k)));
        if (!(size <= most)) { most = size; } // a NaN stays
        if (std::isnan(size)) { return size; }
    }
    return most;
}

template <class T>
void Documents<T>::prepare(index_t d) {
    const index_t first = batch_.first(d);
    index_t count = 0;
    for (index_t i = 0; i < batch_.length(d); ++i) {
        if (batch_.mask) {
            if (!batch_.mask[first + i]) { continue; }
            position_[static_cast<std::size_t>(first + count)] = i;
        }
        ++count;
        const void* x = data(d, i);
        const double norm = std::sqrt(kernels_.sum_of_squares(x, batch_.dtype, batch_.dim));
        T inverse;
        if (norm > kSmall && norm < kLarge) {
            inverse = static_cast<T>(1.0 / norm);
        } else {
            const double most = largest(x);
            inverse = most == 0.0 ? T(0) : kRescale;
            if (!std::isfinite(most)) { finite_[static_cast<std::size_t>(d)] = 0; }
        }
        inverse_norm_[static_cast<std::size_t>(first + i)] = inverse;
    }
    count_[static_cast<std::size_t>(d)] = count;
}

template <class T>
void Documents<T>::unit(index_t d, index_t i, T* out) const {
    const index_t at = row(d, i);
    const void* x = data(d, at);
    const T inverse = inverse_norm_[static_cast<std::size_t>(batch_.first(d) + at)];
    if (inverse != kRescale) {
        kernels_.scale(x, batch_.dtype, batch_.dim, inverse, out);
        return;
    }
    const double most = largest(x);
    double sum = 0.0;
    for (index_t k = 0; k < batch_.dim; ++k) {
        const double part = static_cast<double>(element<T>(x, batch_.dtype, k)) / most;
        sum += part * part;
    }
    const double inverse_rest = 1.0 / std::sqrt(sum); // sum is in [1, dim]
    for (index_t k = 0; k < batch_.dim; ++k) {
        const double part = static_cast<double>(element<T>(x, batch_.dtype, k)) / most;
        out[k] = static_cast<T>(part * inverse_rest);
    }
}

} // namespace flashbertscore
