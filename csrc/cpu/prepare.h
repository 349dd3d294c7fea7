// What is known of every token: its inverse norm, which rows are tokens at all, and whether a
// document holds a NaN or Inf. Read here, unless a kernel is the first to (short_kernel.h).
// O(tokens) memory, nothing of size dim.
#pragma once

#include "core/numeric.h"
#include "core/parallel.h"
#include "core/views.h"
#include "cpu/isa.h"
#include "cpu/tiles.h"

#include <cmath>
#include <type_traits>
#include <vector>

namespace flashbertscore {

// One side of the match. T: the type computed in. S: the type that is multiplied.
template <class T, class S>
class Documents {
  public:
    Documents(const TokenBatch& batch, const Kernels<T, S>& kernels)
        : batch_(batch), kernels_(kernels), scale_(static_cast<std::size_t>(batch.rows())),
          state_(static_cast<std::size_t>(batch.documents)) {
        if (batch.mask) { row_.resize(static_cast<std::size_t>(batch.rows())); }
    }

    // Finds the tokens of document d among its rows.
    void locate(index_t d);
    // Reads the tokens of document d, once located, up to token `end`; those read before are not
    // read again. Different documents may be located and read by different threads.
    void read(index_t d, index_t end);

    // Number of tokens of document d: its rows without the masked ones.
    index_t count(index_t d) const { return state(d).count; }
    // Whether no token read so far holds a NaN or Inf.
    bool finite(index_t d) const { return state(d).finite; }

    // Whether the norm of a token read so far is beyond what products of T can hold: such a token
    // is taken as a unit vector of T, so S must be T to match this document.
    bool extreme(index_t d) const { return state(d).extreme; }

    // Factor that makes <x, y> of a token, as `rows` gives it, a cosine; 0 for a zero vector.
    const T* scale(index_t d) const { return scale_.data() + batch_.first(d); } // [count]

    // A kernel may be the first to read the tokens of document d, if none has been read. It writes
    // their scales; if it finds all ordinary, that is told to `was_read`.
    bool fresh(index_t d) const { return state(d).read == 0; }
    T* scale(index_t d) { return scale_.data() + batch_.first(d); } // [count]
    void was_read(index_t d) { state_[static_cast<std::size_t>(d)].read = state(d).count; }

    // Whether `rows` needs no scratch memory for the tokens of document d read so far.
    bool in_place(index_t d) const { return state(d).in_place && !state(d).extreme; }

    // `count` tokens of document d from token `first` on, in place if the document allows it, else
    // written to scratch[count, dim]; as they are before they have been read, and so if ordinary.
    Rows<S> rows(index_t d, index_t first, index_t count, S* scratch) const;

    // The same, written to out[count, dim] wherever they are.
    void copy(index_t d, index_t first, index_t count, S* out) const;

    // Weight of token i of document d.
    double weight(index_t d, index_t i) const {
        if (!batch_.weights) { return 1.0; }
        const T* weights = static_cast<const T*>(batch_.weights);
        return static_cast<double>(weights[batch_.first(d) + row(d, i)]);
    }

    // Row of token i of document d within the document.
    index_t row(index_t d, index_t i) const {
        return batch_.mask ? row_[static_cast<std::size_t>(batch_.first(d) + i)] : i;
    }

    const TokenBatch& batch() const { return batch_; }

  private:
    struct State {
        index_t count = 0;
        index_t read = 0;
        bool finite = true;
        bool in_place = true;
        bool extreme = false; // some token is read as a unit vector
    };

    // A token that is not ordinary is read as a unit vector, made in double from values divided by
    // the largest, and its scale is 1.
    static constexpr DType multiplied = std::is_same_v<S, float>    ? DType::float32
                                        : std::is_same_v<S, double> ? DType::float64
                                                                    : DType::bfloat16;

    const State& state(index_t d) const { return state_[static_cast<std::size_t>(d)]; }
    const void* data(index_t d, index_t row) const {
        return static_cast<const char*>(batch_.data) +
               batch_.element(d, row) * element_bytes(batch_.dtype);
    }
    T squares(const void* row) const {
        T sum;
        kernels_.squares(&row, 1, batch_.dtype, batch_.dim, &sum);
        return sum;
    }
    // Takes the next `count` tokens as read, with their sums of squares; false, and none is taken,
    // if one of them is not ordinary.
    bool take(index_t d, index_t count, const T* squares);
    void take_one(index_t d, T squares);
    double largest(const void* row) const;
    void unit(const void* row, T* out) const;

    TokenBatch batch_;
    const Kernels<T, S>& kernels_;
    std::vector<T> scale_;     // [rows], those of document d from first(d) on, masked rows left out
    std::vector<index_t> row_; // [rows] if masked: rows of the tokens, in the same places
    std::vector<State> state_; // [documents]
};

template <class T, class S>
double Documents<T, S>::largest(const void* row) const {
    double most = 0.0;
    for (index_t k = 0; k < batch_.dim; ++k) {
        const double size = std::fabs(static_cast<double>(element<T>(row, batch_.dtype, k)));
        if (std::isnan(size)) { return size; }
        most = std::max(most, size);
    }
    return most;
}

template <class T, class S>
void Documents<T, S>::unit(const void* row, T* out) const {
    const double most = largest(row);
    double sum = 0.0; // in [1, dim]
    for (index_t k = 0; k < batch_.dim; ++k) {
        const double part = static_cast<double>(element<T>(row, batch_.dtype, k)) / most;
        sum += part * part;
    }
    const double inverse = 1.0 / std::sqrt(sum);
    for (index_t k = 0; k < batch_.dim; ++k) {
        const double part = static_cast<double>(element<T>(row, batch_.dtype, k)) / most;
        out[k] = static_cast<T>(part * inverse);
    }
}

template <class T, class S>
void Documents<T, S>::locate(index_t d) {
    const index_t length = batch_.length(d);
    State state;
    state.in_place = batch_.dtype == multiplied;
    if (!batch_.mask) {
        state.count = length;
    } else {
        const index_t first = batch_.first(d);
        for (index_t i = 0; i < length; ++i) {
            if (!batch_.mask[first + i]) { continue; }
            row_[static_cast<std::size_t>(first + state.count)] = i;
            // Padding on either side leaves the tokens in one run; a hole does not.
            state.in_place &= i - row(d, 0) == state.count;
            ++state.count;
        }
    }
    state_[static_cast<std::size_t>(d)] = state;
}

template <class T, class S>
void Documents<T, S>::read(index_t d, index_t end) {
    if (state(d).read >= end) { return; } // and other threads may be here as well
    State& state = state_[static_cast<std::size_t>(d)];
    constexpr index_t most = 16; // at a time
    while (state.read < end) {
        const index_t count = std::min(most, end - state.read);
        const void* rows[most];
        for (index_t i = 0; i < count; ++i) { rows[i] = data(d, row(d, state.read + i)); }
        T sums[most];
        kernels_.squares(rows, count, batch_.dtype, batch_.dim, sums);
        if (take(d, count, sums)) { continue; }
        for (index_t i = 0; i < count; ++i) { take_one(d, sums[i]); }
    }
}

template <class T, class S>
bool Documents<T, S>::take(index_t d, index_t count, const T* squares) {
    for (index_t i = 0; i < count; ++i) {
        if (!ordinary(squares[i])) { return false; }
    }
    State& state = state_[static_cast<std::size_t>(d)];
    T* scales = scale(d) + state.read;
    for (index_t i = 0; i < count; ++i) { scales[i] = inverse_norm(squares[i]); }
    state.read += count;
    return true;
}

template <class T, class S>
void Documents<T, S>::take_one(index_t d, T squares) {
    if (take(d, 1, &squares)) { return; }
    State& state = state_[static_cast<std::size_t>(d)];
    const double most = largest(data(d, row(d, state.read)));
    state.extreme |= most != 0.0;
    state.finite &= std::isfinite(most);
    scale(d)[state.read] = most == 0.0 ? T(0) : T(1);
    ++state.read;
}

template <class T, class S>
Rows<S> Documents<T, S>::rows(index_t d, index_t first, index_t count, S* scratch) const {
    if (in_place(d)) { return {static_cast<const S*>(data(d, row(d, first))), batch_.row_stride}; }
    copy(d, first, count, scratch);
    return {scratch, batch_.dim};
}

template <class T, class S>
void Documents<T, S>::copy(index_t d, index_t first, index_t count, S* out) const {
    for (index_t i = 0; i < count; ++i, out += batch_.dim) {
        const void* x = data(d, row(d, first + i));
        if constexpr (std::is_same_v<T, S>) {
            if (extreme(d) && scale(d)[first + i] != T(0) && !ordinary(squares(x))) {
                unit(x, out);
                continue;
            }
        }
        kernels_.convert(x, batch_.dtype, batch_.dim, out);
    }
}

// Locates and reads all documents of a side.
template <class T, class S>
void read_all(Documents<T, S>& side, int threads) {
    const index_t documents = side.batch().documents;
    const double elements =
        static_cast<double>(side.batch().rows()) * static_cast<double>(side.batch().dim);
    const int workers = useful_threads(elements, threads);
    WorkQueue queue(documents, 1 + documents / (16 * workers));
    run_workers(workers, [&](int) {
        for (index_t begin, end; queue.take(begin, end);) {
            for (index_t d = begin; d < end; ++d) {
                side.locate(d);
                side.read(d, side.count(d));
            }
        }
    });
}

} // namespace flashbertscore
