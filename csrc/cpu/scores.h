// From the best similarities of a pair's tokens to its scores.
#pragma once

#include "core/views.h"
#include "cpu/prepare.h"

#include <cmath>
#include <limits>

namespace flashbertscore {

struct Scores {
    double precision, recall, f1;
};

inline constexpr Scores kNoScores = {std::numeric_limits<double>::quiet_NaN(),
                                     std::numeric_limits<double>::quiet_NaN(),
                                     std::numeric_limits<double>::quiet_NaN()};

// Weighted mean of best[i] * scale[i] over the tokens of document d.
template <class T, class S>
double mean(const Documents<T, S>& side, index_t d, const T* best) {
    const T* scale = side.scale(d);
    double sum = 0.0;
    double weights = 0.0;
    for (index_t i = 0; i < side.count(d); ++i) {
        const double weight = side.weight(d, i);
        sum += weight * static_cast<double>(best[i] * scale[i]);
        weights += weight;
    }
    return sum / weights; // 0 / 0 is NaN: nothing had weight
}

inline Scores scores_of(double precision, double recall) {
    const double sum = precision + recall;
    const bool defined = sum != 0.0 && !std::isnan(sum);
    return {precision, recall, defined ? 2.0 * precision * recall / sum : 0.0};
}

// Writes element p.
template <class T>
void write(const ScoreOut& out, index_t p, const Scores& scores) {
    static_cast<T*>(out.precision)[p] = static_cast<T>(scores.precision);
    static_cast<T*>(out.recall)[p] = static_cast<T>(scores.recall);
    static_cast<T*>(out.f1)[p] = static_cast<T>(scores.f1);
}

} // namespace flashbertscore
