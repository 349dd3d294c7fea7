// From a choice of tiles to the kernel that was compiled for them. Included once per element type.
#pragma once

#include "cuda/heuristics.h"
#include "cuda/match.cuh"
#include "cuda/rescue.cuh"
#include "cuda/runtime.h"

namespace flashbertscore::cuda {

template <class T, class E, bool ALIGNED>
void launch_whole(const Problem& problem, const Device& device, Stream stream) {
    launch<match<T, E, ALIGNED, WholePairs<T>>>(device, problem.count, T::THREADS, T::short_bytes(),
                                                stream, problem);
}

template <class T, class E, bool ALIGNED, class Items = PairParts<T>>
void launch_unplaced(const Problem& problem, const Device& device, Stream stream) {
    launch<match<T, E, ALIGNED, Items>>(device, problem.item_count, T::THREADS, T::long_bytes(),
                                        stream, problem);
}

// With the places of maxima.
template <class T, class E, bool ALIGNED, class Items = PairParts<T>>
void launch_placed(const Problem& problem, const Device& device, Stream stream) {
    launch<match<T, E, ALIGNED, Items, true>>(device, problem.item_count, T::THREADS,
                                              T::long_bytes(), stream, problem);
}

template <class T, class E, bool ALIGNED, class Items = PairParts<T>>
void launch_parts(const Problem& problem, const Device& device, Stream stream) {
    if (problem.alignment) return launch_placed<T, E, ALIGNED, Items>(problem, device, stream);
    launch_unplaced<T, E, ALIGNED, Items>(problem, device, stream);
}

// Which of this and launch_parts has work, the norms decide, on the device. Small tiles: the large
// ones leave no registers for shifts.
template <class E>
void launch_shifted_parts(const Problem& problem, const Choice& choice, const Device& device,
                          Stream stream) {
    using T = AnyShape;
    if (choice.shape == Shape::any) {
        return launch_parts<T, E, false, PairParts<T, true>>(problem, device, stream);
    }
    if (choice.shape == Shape::placed) {
        using Items = PairParts<T, true, FloatLarge::TM / T::TM, FloatLarge::TN / T::TN>;
        return launch_placed<T, E, true, Items>(problem, device, stream);
    }
    using Items = PairParts<T, true, HalfLarge::TM / T::TM, HalfLarge::TN / T::TN>;
    launch_unplaced<T, E, true, Items>(problem, device, stream);
}

template <class E>
void launch_whole(const Problem& problem, Shape shape, bool aligned, const Device& device,
                  Stream stream) {
    using Tiny = std::conditional_t<E::split, FloatTiny, HalfTiny>;
    using Small = std::conditional_t<E::split, FloatSmall, HalfSmall>;
    using Large = std::conditional_t<E::split, FloatLarge, HalfLarge>;
    if (!aligned) return launch_whole<AnyShape, E, false>(problem, device, stream);
    switch (shape) {
    case Shape::tiny: return launch_whole<Tiny, E, true>(problem, device, stream);
    case Shape::small: return launch_whole<Small, E, true>(problem, device, stream);
    case Shape::medium:
        if constexpr (!E::split) return launch_whole<HalfMedium, E, true>(problem, device, stream);
        break;
    case Shape::large: return launch_whole<Large, E, true>(problem, device, stream);
    case Shape::placed:
    case Shape::any: break;
    }
    launch_whole<AnyShape, E, true>(problem, device, stream);
}

template <class E>
void launch_match(const Problem& problem, const Choice& choice, bool aligned, const Device& device,
                  Stream stream) {
    if (!choice.parts) {
        launch_whole<E>(problem, choice.shape, aligned, device, stream);
        if constexpr (E::wide) {
            using T = AnyShape;
            launch<rescue<T, E>>(device, problem.count, T::THREADS,
                                 4 * T::SHORT_FLOATS + T::REDUCTION_BYTES, stream, problem);
        }
        return;
    }
    using Large = std::conditional_t<E::split, FloatLarge, HalfLarge>;
    if constexpr (E::wide) launch_shifted_parts<E>(problem, choice, device, stream);
    if (!aligned) return launch_parts<AnyShape, E, false>(problem, device, stream);
    if (choice.shape == Shape::any) return launch_parts<AnyShape, E, true>(problem, device, stream);
    if (choice.shape == Shape::placed) {
        return launch_placed<FloatLarge, E, true>(problem, device, stream);
    }
    launch_unplaced<Large, E, true>(problem, device, stream);
}

template <class E>
void launch_norms(const Side& side, int dim, index_t rows, bool padded, bool aligned,
                  const Device& device, Stream stream) {
    launch<norms<E>>(device, (rows + 31) / 32, NORMS_THREADS, 0, stream, side, dim, rows, padded,
                     aligned, static_cast<float*>(const_cast<void*>(side.scales)), side.shifted);
}

// Defined in kernels_*.cu, one file an element type, so that they compile in parallel.
#define FLASHBERTSCORE_KERNELS(NAME)                                                               \
    void match_##NAME(const Problem&, const Choice&, bool aligned, const Device&, Stream);         \
    void norms_##NAME(const Side&, int dim, index_t rows, bool padded, bool aligned,               \
                      const Device&, Stream);
FLASHBERTSCORE_KERNELS(bf16)
FLASHBERTSCORE_KERNELS(fp16)
FLASHBERTSCORE_KERNELS(fp32)
#undef FLASHBERTSCORE_KERNELS

} // namespace flashbertscore::cuda
