// The truth in C++: every function of the table as its one-line definition. The instruction-set
// files are tested against this one.
#include "core/numeric.h"
#include "cpu/isa.h"

#include <algorithm>

namespace flashbertscore {
namespace {

template <class T>
double sum_of_squares(const void* row, DType dtype, index_t dim) {
    double sum = 0.0;
    for (index_t k = 0; k < dim; ++k) {
        const double x = element<T>(row, dtype, k);
        sum += x * x;
    }
    return sum;
}

template <class T>
void scale(const void* row, DType dtype, index_t dim, T factor, T* out) {
    for (index_t k = 0; k < dim; ++k) { out[k] = element<T>(row, dtype, k) * factor; }
}

template <class T>
void pack(const T* rows, index_t, index_t dim, T* panel) {
    std::copy(rows, rows + dim, panel);
}

template <class T>
void match(const T* x, index_t, const T* panels, index_t panel_count, index_t dim, T* row_max,
           T* column_max) {
    for (index_t j = 0; j < panel_count; ++j) {
        double dot = 0.0;
        for (index_t k = 0; k < dim; ++k) {
            dot += static_cast<double>(x[k]) * static_cast<double>(panels[j * dim + k]);
        }
        row_max[0] = std::max(row_max[0], static_cast<T>(dot));
        column_max[j] = std::max(column_max[j], static_cast<T>(dot));
    }
}

template <class T>
constexpr Kernels<T> kernels() {
    return {1, 1, sum_of_squares<T>, scale<T>, pack<T>, match<T>};
}

} // namespace

const Isa kScalar = {"scalar", "plain C++, sums in double", [] { return true; }, kernels<float>(),
                     kernels<double>()};

} // namespace flashbertscore
