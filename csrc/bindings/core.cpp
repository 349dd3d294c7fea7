// Python module `_core`: turns addresses into views and calls the CPU entry. It only binds.
#include "bindings/gradient.h"
#include "bindings/views.h"
#include "core/interrupt.h"
#include "core/validate.h"
#include "core/views.h"
#include "cpu/attention.h"
#include "cpu/backward.h"
#include "cpu/encoder_layer.h"
#include "cpu/greedy_match.h"
#include "cpu/grid.h"
#include "cpu/isa.h"
#if defined(FLASHBERTSCORE_CUDA_VERSION)
#include "bindings/cuda_gradient.h"
#include "bindings/cuda_plan.h"
#else
#define FLASHBERTSCORE_CUDA_VERSION ""
#define FLASHBERTSCORE_CUDA_TARGETS ""
#define FLASHBERTSCORE_WITHOUT_CUDA
#endif

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace py = pybind11;
namespace fbs = flashbertscore;

namespace {

template <class T>
T* pointer(std::uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

// Names of the instruction sets that this processor supports, best first.
std::vector<std::string> supported_isas() {
    std::vector<std::string> names;
    for (fbs::index_t i = 0; i < fbs::isa_count(); ++i) {
        if (fbs::isas()[i]->supported()) { names.emplace_back(fbs::isas()[i]->name); }
    }
    return names;
}

const fbs::Isa& named_isa(const std::string& name) {
    const fbs::Isa* isa = fbs::find_isa(name.c_str());
    if (isa != nullptr && isa->supported()) { return *isa; }
    std::string message = "FLASHBERTSCORE_ISA: expected one of";
    for (const std::string& known : supported_isas()) { message.append(" ").append(known); }
    message.append(", got '").append(name).append("'");
    if (isa != nullptr) { message.append(", which this processor does not support"); }
    throw std::invalid_argument(message);
}

const fbs::Isa& chosen_isa() {
    const char* forced = std::getenv("FLASHBERTSCORE_ISA");
    return forced != nullptr && *forced != '\0' ? named_isa(forced) : fbs::best_isa();
}

// Whether a signal's handler has raised, as that of Ctrl-C does; then Python's error is set.
bool has_signal() {
    const py::gil_scoped_acquire locked;
    return PyErr_CheckSignals() != 0;
}

void greedy_match(const fbs::TokenBatch& candidate, fbs::index_t candidate_rows,
                  const fbs::TokenBatch& reference, fbs::index_t reference_rows,
                  std::uintptr_t pairs, fbs::index_t pair_count, std::uintptr_t precision,
                  std::uintptr_t recall, std::uintptr_t f1, int threads,
                  const std::optional<fbs::bindings::AlignmentAddresses>& alignment) {
    using Addresses = fbs::bindings::AlignmentAddresses;
    const fbs::PairList list = {pointer<const fbs::index_t>(pairs), pair_count};
    const fbs::Isa& isa = chosen_isa();
    try {
        const py::gil_scoped_release unlocked;
        fbs::Interrupt interrupt(&has_signal);
        fbs::validate(candidate, candidate_rows, reference, reference_rows, list);
        fbs::greedy_match(candidate, reference, list,
                          {pointer<void>(precision), pointer<void>(recall), pointer<void>(f1)},
                          threads, isa,
                          fbs::bindings::alignment_out(alignment.value_or(Addresses{})));
    } catch (const fbs::Interrupted&) { throw py::error_already_set(); }
}

void match_grid(const fbs::TokenBatch& candidate, fbs::index_t candidate_rows,
                const fbs::TokenBatch& reference, fbs::index_t reference_rows,
                fbs::index_t diagonal, std::uintptr_t precision, std::uintptr_t recall,
                std::uintptr_t f1, int threads) {
    const fbs::Isa& isa = chosen_isa();
    try {
        const py::gil_scoped_release unlocked;
        fbs::Interrupt interrupt(&has_signal);
        fbs::validate(candidate, candidate_rows, reference, reference_rows, {nullptr, 0});
        fbs::match_grid(candidate, reference, diagonal,
                        {pointer<void>(precision), pointer<void>(recall), pointer<void>(f1)},
                        threads, isa);
    } catch (const fbs::Interrupted&) { throw py::error_already_set(); }
}

void match_backward(const fbs::TokenBatch& candidate, fbs::index_t candidate_rows,
                    const fbs::TokenBatch& reference, fbs::index_t reference_rows,
                    std::uintptr_t pairs, fbs::index_t pair_count, std::uintptr_t precision,
                    std::uintptr_t recall, const fbs::bindings::AlignmentAddresses& alignment,
                    const fbs::bindings::GradientAddresses& gradient,
                    const fbs::bindings::OutAddresses& out, int threads) {
    const fbs::PairList list = {pointer<const fbs::index_t>(pairs), pair_count};
    const fbs::Isa& isa = chosen_isa();
    const py::gil_scoped_release unlocked;
    fbs::validate(candidate, candidate_rows, reference, reference_rows, list);
    fbs::match_backward(candidate, reference, list, pointer<const void>(precision),
                        pointer<const void>(recall), fbs::bindings::alignment_of(alignment),
                        fbs::bindings::gradient_of(gradient), fbs::bindings::out_of(out), threads,
                        isa);
}

// Address of the first element; elements between texts, heads, tokens.
using Strided = std::tuple<std::uintptr_t, fbs::index_t, fbs::index_t, fbs::index_t>;

fbs::HeadView heads(const Strided& view) {
    const auto [data, text, head, token] = view;
    return {pointer<const void>(data), text, head, token};
}

// shape: [texts, heads, tokens, dim].
void attend(int dtype, const std::array<fbs::index_t, 4>& shape, const Strided& q, const Strided& k,
            const Strided& v, std::uintptr_t lengths, float scale, std::uintptr_t out,
            int threads) {
    const fbs::AttentionBatch batch = {static_cast<fbs::DType>(dtype),
                                       shape[0],
                                       shape[1],
                                       shape[2],
                                       shape[3],
                                       scale,
                                       pointer<const fbs::index_t>(lengths),
                                       heads(q),
                                       heads(k),
                                       heads(v),
                                       pointer<void>(out)};
    const fbs::Isa& isa = chosen_isa();
    const py::gil_scoped_release unlocked;
    fbs::attend(batch, threads, isa);
}

// Addresses of the panels and of the bias (0: none); rows and columns of the plain weight.
using PackedAddresses = std::tuple<std::uintptr_t, std::uintptr_t, fbs::index_t, fbs::index_t>;

// Panels are as wide as the instruction set that packed them wants.
const fbs::Isa& isa_of(fbs::index_t columns) {
    const fbs::Isa& isa = chosen_isa();
    if (isa.linear->columns == columns) { return isa; }
    throw std::invalid_argument("packed: expected panels of " +
                                std::to_string(isa.linear->columns) + " columns, got " +
                                std::to_string(columns));
}

fbs::PackedWeight packed_weight(const PackedAddresses& addresses) {
    const auto [panels, bias, out, in] = addresses;
    return {in, out, pointer<const float>(panels), pointer<const float>(bias)};
}

void linear(std::uintptr_t x, fbs::index_t rows, fbs::index_t x_stride,
            const PackedAddresses& weight, fbs::index_t columns, int activation,
            std::uintptr_t residual, fbs::index_t residual_stride, std::uintptr_t out,
            int threads) {
    const fbs::Isa& isa = isa_of(columns);
    const py::gil_scoped_release unlocked;
    const fbs::PackedWeight packed = packed_weight(weight);
    fbs::linear({rows,
                 {pointer<const float>(x), x_stride},
                 packed,
                 static_cast<fbs::Activation>(activation),
                 {pointer<const float>(residual), residual_stride},
                 pointer<float>(out),
                 packed.out},
                threads, isa);
}

// weights: query, key, value, projection, up, down. norms: weight, bias, eps; after the attention
// and at the end.
using NormAddresses = std::tuple<std::uintptr_t, std::uintptr_t, float>;

void encode(std::uintptr_t x, std::uintptr_t out, fbs::index_t texts, fbs::index_t width,
            std::uintptr_t lengths, fbs::index_t heads,
            const std::array<PackedAddresses, 6>& weights, fbs::index_t columns, int activation,
            const std::array<NormAddresses, 2>& norms, int threads) {
    const fbs::Isa& isa = isa_of(columns);
    const py::gil_scoped_release unlocked;
    const auto norm = [&](std::size_t i) {
        const auto [weight, bias, eps] = norms[i];
        return fbs::Norm{pointer<const float>(weight), pointer<const float>(bias), eps};
    };
    const fbs::PackedWeight up = packed_weight(weights[4]);
    const fbs::EncoderLayer layer = {up.in,
                                     heads,
                                     up.out,
                                     packed_weight(weights[0]),
                                     packed_weight(weights[1]),
                                     packed_weight(weights[2]),
                                     packed_weight(weights[3]),
                                     norm(0),
                                     up,
                                     static_cast<fbs::Activation>(activation),
                                     packed_weight(weights[5]),
                                     norm(1)};
    fbs::encode(layer,
                {texts, width, pointer<const fbs::index_t>(lengths), pointer<const float>(x),
                 pointer<float>(out)},
                threads, isa);
}

} // namespace

PYBIND11_MODULE(_core, m) {
    m.doc() = "FlashBERTScore's compiled kernels on raw addresses; flashbertscore.ops is the user.";

    m.def("greedy_match", &greedy_match, py::arg("candidate"), py::arg("candidate_rows"),
          py::arg("reference"), py::arg("reference_rows"), py::arg("pairs"), py::arg("pair_count"),
          py::arg("precision"), py::arg("recall"), py::arg("f1"), py::arg("threads"),
          py::arg("alignment") = py::none());
    m.def("match_grid", &match_grid, py::arg("candidate"), py::arg("candidate_rows"),
          py::arg("reference"), py::arg("reference_rows"), py::arg("diagonal"),
          py::arg("precision"), py::arg("recall"), py::arg("f1"), py::arg("threads"));
    m.def("match_backward", &match_backward, py::arg("candidate"), py::arg("candidate_rows"),
          py::arg("reference"), py::arg("reference_rows"), py::arg("pairs"), py::arg("pair_count"),
          py::arg("precision"), py::arg("recall"), py::arg("alignment"), py::arg("gradient"),
          py::arg("out"), py::arg("threads"));
    m.def(
        "validate",
        [](const fbs::TokenBatch& candidate, fbs::index_t candidate_rows,
           const fbs::TokenBatch& reference, fbs::index_t reference_rows, std::uintptr_t pairs,
           fbs::index_t pair_count) {
            fbs::validate(candidate, candidate_rows, reference, reference_rows,
                          {pointer<const fbs::index_t>(pairs), pair_count});
        },
        py::arg("candidate"), py::arg("candidate_rows"), py::arg("reference"),
        py::arg("reference_rows"), py::arg("pairs"), py::arg("pair_count"));
    m.def("attend", &attend, py::arg("dtype"), py::arg("shape"), py::arg("q"), py::arg("k"),
          py::arg("v"), py::arg("lengths"), py::arg("scale"), py::arg("out"), py::arg("threads"));
    m.def("linear", &linear, py::arg("x"), py::arg("rows"), py::arg("x_stride"), py::arg("weight"),
          py::arg("columns"), py::arg("activation"), py::arg("residual"),
          py::arg("residual_stride"), py::arg("out"), py::arg("threads"));
    m.def("encode", &encode, py::arg("x"), py::arg("out"), py::arg("texts"), py::arg("width"),
          py::arg("lengths"), py::arg("heads"), py::arg("weights"), py::arg("columns"),
          py::arg("activation"), py::arg("norms"), py::arg("threads"));
    m.def("linear_columns", [] { return chosen_isa().linear->columns; });
    m.def("isa", [] { return std::string(chosen_isa().name); });
    m.def("isas", &supported_isas);
    m.def("cuda_build", [] {
        const py::str targets = FLASHBERTSCORE_CUDA_TARGETS;
        py::dict build;
        build["cuda"] = FLASHBERTSCORE_CUDA_VERSION;
        build["cuda_architectures"] = targets.attr("split")();
        return build;
    });
#if !defined(FLASHBERTSCORE_WITHOUT_CUDA)
    flashbertscore::bindings::bind_plan(m);
    flashbertscore::bindings::bind_gradient(m);
#endif
}
