// Random encoder layers for fuzz_cpu: every instruction set against the scalar one, one thread
// against several, a text alone against the batch; buffers exactly as large as the views say.
#pragma once

#include "cpu/encoder_layer.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace flashbertscore::test {

class LayerProblem {
  public:
    explicit LayerProblem(std::uint64_t seed) : random_(seed) {
        const bool large = random_() % 30 == 0; // enough work that threads start
        heads_ = 1 + index_t(random_() % 3);
        dim_ = heads_ * (large ? 32 : edge());
        wide_ = large ? 400 : edge();
        // Few texts whose products threads share, or enough that each thread has some of its own.
        const bool many = large && random_() % 2 == 0;
        width_ = large ? (many ? 120 : 250) : edge();
        const index_t texts = many ? 12 : large ? 3 : 1 + index_t(random_() % 4);
        for (index_t b = 0; b < texts; ++b) {
            lengths_.push_back(random_() % 3 ? width_ : index_t(random_() % (width_ + 1)));
        }
        const index_t shapes[6][2] = {{dim_, dim_}, {dim_, dim_},  {dim_, dim_},
                                      {dim_, dim_}, {wide_, dim_}, {dim_, wide_}};
        for (int i = 0; i < 6; ++i) {
            rows_[i] = shapes[i][0];
            depth_[i] = shapes[i][1];
            weights_[i] =
                normal(rows_[i] * depth_[i], 1.0 / std::sqrt(static_cast<double>(depth_[i])));
            if (random_() % 4) { biases_[i] = normal(rows_[i], 1.0); }
        }
        for (std::vector<float>& norm : norms_) { norm = normal(dim_, 1.0); }
        x_ = normal(texts * width_ * dim_, 1.0);
        for (index_t b = 0; b < texts; ++b) { // never read
            std::fill(x_.begin() + (b * width_ + lengths_[static_cast<std::size_t>(b)]) * dim_,
                      x_.begin() + (b + 1) * width_ * dim_, std::nanf(""));
        }
        activation_ = static_cast<Activation>(random_() % 3);
    }

    // The result for texts [begin, end).
    std::vector<float> run(index_t begin, index_t end, int threads, const Isa& isa) const {
        PackedWeight packed[6];
        std::vector<float> panels[6];
        const index_t C = isa.linear->columns;
        for (int i = 0; i < 6; ++i) {
            panels[i].resize(static_cast<std::size_t>((rows_[i] + C - 1) / C * C * depth_[i]));
            for (index_t r = 0; r < rows_[i]; ++r) {
                for (index_t k = 0; k < depth_[i]; ++k) {
                    panels[i][static_cast<std::size_t>((r / C * depth_[i] + k) * C + r % C)] =
                        weights_[i][static_cast<std::size_t>(r * depth_[i] + k)];
                }
            }
            packed[i] = {depth_[i], rows_[i], panels[i].data(),
                         biases_[i].empty() ? nullptr : biases_[i].data()};
        }
        const EncoderLayer layer = {
            dim_,      heads_,      wide_,     packed[0],
            packed[1], packed[2],   packed[3], {norms_[0].data(), norms_[1].data(), 1e-5f},
            packed[4], activation_, packed[5], {norms_[2].data(), norms_[3].data(), 1e-5f}};
        std::vector<float> out(static_cast<std::size_t>((end - begin) * width_ * dim_),
                               std::nanf(""));
        encode(layer,
               {end - begin, width_, lengths_.data() + begin, x_.data() + begin * width_ * dim_,
                out.data()},
               threads, isa);
        return out;
    }

    index_t texts() const { return static_cast<index_t>(lengths_.size()); }

  private:
    index_t edge() { // on or next to a multiple of a vector or tile
        const index_t edges[] = {1, 4, 6, 8, 12, 16, 24, 32, 48, 64};
        return std::max<index_t>(1, edges[random_() % 10] + index_t(random_() % 3) - 1);
    }
    std::vector<float> normal(index_t count, double size) {
        std::normal_distribution<double> values(0.0, size);
        std::vector<float> made(static_cast<std::size_t>(count));
        for (float& value : made) { value = static_cast<float>(values(random_)); }
        return made;
    }

    std::mt19937_64 random_;
    index_t heads_, dim_, wide_, width_;
    index_t rows_[6], depth_[6];
    std::vector<index_t> lengths_;
    std::vector<float> weights_[6], biases_[6], norms_[4], x_;
    Activation activation_;
};

// Returns what is wrong, empty if nothing.
inline std::string try_layer(std::uint64_t seed) {
    const LayerProblem problem(seed);
    const index_t texts = problem.texts();
    const std::vector<float> truth = problem.run(0, texts, 1, kScalar);
    for (index_t i = 0; i < isa_count(); ++i) {
        const Isa& isa = *isas()[i];
        if (!isa.supported()) { continue; }
        const std::vector<float> one = problem.run(0, texts, 1, isa);
        for (std::size_t k = 0; k < one.size(); ++k) {
            // A norm of one or two elements multiplies what rounding left of their distance.
            const double bound = 2e-3 * (1.0 + std::fabs(static_cast<double>(truth[k])));
            if (!(std::fabs(static_cast<double>(one[k]) - static_cast<double>(truth[k])) <=
                  bound)) {
                return std::string(isa.name) + ": a layer differs from scalar by " +
                       std::to_string(one[k] - truth[k]);
            }
        }
        for (const int threads : {2, 5}) {
            if (problem.run(0, texts, threads, isa) != one) {
                return std::string(isa.name) + ": bits of a layer depend on threads";
            }
        }
        std::vector<float> alone;
        for (index_t b = 0; b < texts; ++b) {
            const std::vector<float> text = problem.run(b, b + 1, 1, isa);
            alone.insert(alone.end(), text.begin(), text.end());
        }
        if (alone != one) { return std::string(isa.name) + ": bits of a text depend on others"; }
    }
    return "";
}

} // namespace flashbertscore::test
