// The truth in C++: every function of the table as its one-line definition. The instruction-set
// files are tested against this one.
#include "core/numeric.h"
#include "cpu/isa.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace flashbertscore {
namespace {

template <class T>
constexpr DType own_dtype = sizeof(T) == 4 ? DType::float32 : DType::float64;

template <class T>
void squares(const void* const* rows, index_t count, DType dtype, index_t dim, T* out) {
    for (index_t i = 0; i < count; ++i) {
        double sum = 0.0;
        for (index_t k = 0; k < dim; ++k) {
            const double x = element<T>(rows[i], dtype, k);
            sum += x * x;
        }
        out[i] = static_cast<T>(sum);
    }
}

template <class T>
void convert(const void* row, DType dtype, index_t dim, T* out) {
    for (index_t k = 0; k < dim; ++k) { out[k] = element<T>(row, dtype, k); }
}

template <class T>
void pack(Rows<T> rows, index_t, index_t dim, T* panel) {
    std::copy(rows[0], rows[0] + dim, panel);
}

template <class T>
void match_all(Rows<T> x, const T* x_scale, index_t N, Rows<T> y, const T* y_scale, index_t M,
               index_t dim, T* row_max, T* column_max, Places<T> places) {
    for (index_t i = 0; i < N; ++i) {
        for (index_t j = 0; j < M; ++j) {
            double sum = 0.0;
            for (index_t k = 0; k < dim; ++k) {
                sum += static_cast<double>(x[i][k]) * static_cast<double>(y[j][k]);
            }
            const T dot = static_cast<T>(sum);
            if (places.row && dot * y_scale[j] > row_max[i]) {
                places.row[i] = static_cast<Place<T>>(places.first_column + j);
            }
            if (places.column && dot * x_scale[i] > column_max[j]) {
                places.column[j] = static_cast<Place<T>>(places.first_row + i);
            }
            row_max[i] = std::max(row_max[i], dot * y_scale[j]);
            column_max[j] = std::max(column_max[j], dot * x_scale[i]);
        }
    }
}

template <class T>
bool take_scales(const Side<T, T>& side, index_t dim) {
    for (index_t i = 0; i < side.count; ++i) {
        const void* const row = side.tokens[i];
        T sum;
        squares<T>(&row, 1, own_dtype<T>, dim, &sum);
        if (!ordinary(sum)) { return false; }
        side.scale[i] = inverse_norm(sum);
    }
    return true;
}

template <class T>
bool match_short_places(const Side<T, T>& x, const Side<T, T>& y, index_t dim, bool fresh, Ahead,
                        Places<T> places) {
    if (fresh && !(take_scales(x, dim) && take_scales(y, dim))) { return false; }
    match_all<T>(x.tokens, x.scale, x.count, y.tokens, y.scale, y.count, dim, x.best, y.best,
                 places);
    return true;
}

template <class T>
bool match_short(const Side<T, T>& x, const Side<T, T>& y, index_t dim, bool fresh, Ahead ahead) {
    return match_short_places<T>(x, y, dim, fresh, ahead, {});
}

template <class T>
void match_places(Rows<T> x, const T* x_scale, index_t, const T* panels, const T* y_scale,
                  index_t panel_count, index_t dim, T* row_max, T* column_max, Ahead,
                  Places<T> places) {
    match_all<T>(x, x_scale, 1, {panels, dim}, y_scale, panel_count, dim, row_max, column_max,
                 places);
}

template <class T>
void match(Rows<T> x, const T* x_scale, index_t count, const T* panels, const T* y_scale,
           index_t panel_count, index_t dim, T* row_max, T* column_max, Ahead ahead) {
    match_places<T>(x, x_scale, count, panels, y_scale, panel_count, dim, row_max, column_max,
                    ahead, {});
}

template <class T>
void multiply(Rows<T> x, index_t, const T* panels, index_t panel_count, index_t dim, T* products,
              Ahead) {
    for (index_t j = 0; j < panel_count; ++j) {
        double sum = 0.0;
        for (index_t k = 0; k < dim; ++k) {
            sum += static_cast<double>(x[0][k]) * static_cast<double>(panels[j * dim + k]);
        }
        products[j] = static_cast<T>(sum);
    }
}

template <class T>
void maxima(const T* products, index_t pitch, const T* x_scale, index_t count, const T* y_scale,
            const index_t* first, index_t documents, T* row_max, index_t row_pitch, T* column_max) {
    for (index_t d = 0; d < documents; ++d) {
        for (index_t r = 0; r < count; ++r) {
            T& most = row_max[d * row_pitch + r];
            most = -std::numeric_limits<T>::infinity();
            for (index_t j = first[d]; j < first[d + 1]; ++j) {
                const T dot = products[r * pitch + j];
                most = std::max(most, dot * y_scale[j]);
                column_max[j] = std::max(column_max[j], dot * x_scale[r]);
            }
        }
    }
}

void store(void* row, DType dtype, index_t k, double value) {
    const float single = static_cast<float>(value);
    if (dtype == DType::bfloat16) {
        static_cast<std::uint16_t*>(row)[k] = float_to_bfloat16(single);
    } else {
        static_cast<float*>(row)[k] = single;
    }
}

void attend(const Head& head, void* scratch) {
    const DType dtype = head.dtype;
    const index_t bytes = element_bytes(dtype);
    const auto row = [&](const void* data, index_t stride, index_t i) {
        return static_cast<const char*>(data) + i * stride * bytes;
    };
    double* p = static_cast<double*>(scratch); // [L]
    for (index_t i = 0; i < head.length; ++i) {
        const void* q = row(head.q, head.q_stride, i);
        double most = -std::numeric_limits<double>::infinity();
        for (index_t j = 0; j < head.length; ++j) {
            const void* k = row(head.k, head.k_stride, j);
            p[j] = 0.0;
            for (index_t c = 0; c < head.dim; ++c) {
                p[j] += element<double>(q, dtype, c) * element<double>(k, dtype, c);
            }
            p[j] *= static_cast<double>(head.scale);
            most = std::max(most, p[j]);
        }
        double sum = 0.0;
        for (index_t j = 0; j < head.length; ++j) {
            p[j] = std::exp(p[j] - most);
            sum += p[j];
        }
        void* out = static_cast<char*>(head.out) + i * head.out_stride * bytes;
        for (index_t c = 0; c < head.dim; ++c) {
            double value = 0.0;
            for (index_t j = 0; j < head.length; ++j) {
                value += p[j] * element<double>(row(head.v, head.v_stride, j), dtype, c);
            }
            store(out, dtype, c, value / sum);
        }
    }
}

constexpr Attention kAttention = {
    [](index_t length, index_t) { return length * static_cast<index_t>(sizeof(double)); }, attend};

double activated(Activation activation, double x) {
    switch (activation) {
    case Activation::relu: return x > 0.0 || std::isnan(x) ? x : 0.0;
    case Activation::gelu: return 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0)));
    default: return x;
    }
}

void multiply(const LinearTile& tile) {
    double sum = tile.begin.data ? static_cast<double>(*tile.begin.data) : 0.0;
    for (index_t k = 0; k < tile.depth; ++k) {
        sum += static_cast<double>(tile.x.data[k]) * static_cast<double>(tile.panel[k]);
    }
    sum = activated(tile.activation, sum);
    if (tile.residual.data) { sum += static_cast<double>(*tile.residual.data); }
    *tile.out = static_cast<float>(sum);
}

void normalize(const float* x, index_t dim, const float* weight, const float* bias, float eps,
               float* out) {
    double mean = 0.0, variance = 0.0;
    for (index_t k = 0; k < dim; ++k) { mean += static_cast<double>(x[k]); }
    mean /= static_cast<double>(dim);
    for (index_t k = 0; k < dim; ++k) {
        const double distance = static_cast<double>(x[k]) - mean;
        variance += distance * distance;
    }
    variance /= static_cast<double>(dim);
    const double inverse = 1.0 / std::sqrt(variance + static_cast<double>(eps));
    for (index_t k = 0; k < dim; ++k) {
        out[k] = static_cast<float>((static_cast<double>(x[k]) - mean) * inverse *
                                        static_cast<double>(weight[k]) +
                                    static_cast<double>(bias[k]));
    }
}

constexpr Linear kLinear = {1, 1, multiply, normalize};

template <class T>
constexpr Kernels<T> kernels() {
    return {
        1,        1,           1,         squares<T>,     convert<T>,      pack<T>,
        match<T>, multiply<T>, maxima<T>, match_short<T>, match_places<T>, match_short_places<T>};
}

constexpr Kernels<float> kFloat32 = kernels<float>();
constexpr Kernels<double> kFloat64 = kernels<double>();

} // namespace

constinit const Isa kScalar = {"scalar", [] { return true; }, &kFloat32, &kFloat64,
                               nullptr,  &kAttention,         &kLinear};

} // namespace flashbertscore
