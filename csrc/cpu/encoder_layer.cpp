#include "cpu/encoder_layer.h"

#include "core/numeric.h"
#include "cpu/attention.h"
#include "cpu/tiles.h"

#include <cmath>
#include <cstring>
#include <vector>

namespace flashbertscore {
namespace {

// Texts whose tokens, without padding, go through the layer together.
struct Block {
    index_t begin, end; // texts
    index_t tokens;
};

// Floats that a thread keeps between calls: memory new from the system costs more than a page's
// share of the products. Freed with the thread; what a long text took beyond kKept, after the call.
class Scratch {
  public:
    static constexpr std::size_t kKept = std::size_t{16} << 20; // floats
    static constexpr std::size_t kLine = 16;

    float* take(std::size_t floats) {
        if (memory().size() < floats + kLine) {
            memory() = {}; // before the new: never both
            memory() = std::vector<float>(floats + kLine);
        }
        const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(memory().data());
        return memory().data() + (64 - address % 64) % 64 / sizeof(float);
    }
    ~Scratch() {
        if (memory().size() > kKept) { memory() = {}; }
    }

  private:
    static std::vector<float>& memory() {
        static thread_local std::vector<float> kept;
        return kept;
    }
};

std::vector<Block> blocks_of(const EncoderBatch& batch, index_t most) {
    std::vector<Block> blocks;
    for (index_t b = 0; b < batch.texts; ++b) {
        const index_t length = batch.lengths[b];
        if (blocks.empty() || blocks.back().tokens + length > most) { blocks.push_back({b, b, 0}); }
        blocks.back().end = b + 1;
        blocks.back().tokens += length;
    }
    return blocks;
}

class Pass {
  public:
    Pass(const EncoderLayer& layer, const EncoderBatch& batch, int threads, const Isa& isa)
        : layer_(layer), batch_(batch), threads_(threads), isa_(isa) {}

    void run(const Block& block) const {
        const index_t T = block.tokens, D = layer_.dim;
        const index_t rows = std::min(T, kLinearRows) + 1; // of a part, or one more
        const index_t part = threads_ == 1 ? rows : T;
        Scratch scratch;
        float* x = scratch.take(static_cast<std::size_t>(5 * T * D + part * (D + layer_.wide)));
        float* qkv = x + T * D;
        float* context = qkv + 3 * T * D;
        float* hidden = context + T * D;
        float* wide = hidden + part * D;
        for_texts(block, [&](index_t b, index_t first) {
            std::memcpy(x + first * D, row(batch_.x, b), bytes(batch_.lengths[b]));
        });
        parts(T, [&](index_t i, index_t count) {
            const PackedWeight* weights[] = {&layer_.query, &layer_.key, &layer_.value};
            for (index_t n = 0; n < 3; ++n) {
                project(*weights[n], {x + i * D, D}, count, Activation::none, {},
                        qkv + i * 3 * D + n * D, 3 * D);
            }
        });
        attend(block, qkv, context);
        parts(T, [&](index_t i, index_t count) {
            project(layer_.projection, {context + i * D, D}, count, Activation::none,
                    {x + i * D, D}, hidden, D);
            normalize(hidden, count, layer_.attention_norm, hidden);
            project(layer_.up, {hidden, D}, count, layer_.activation, {}, wide, layer_.wide);
            // What follows stands where the text's own values of x were: they are read no more.
            project(layer_.down, {wide, layer_.wide}, count, Activation::none, {hidden, D},
                    x + i * D, D);
            normalize(x + i * D, count, layer_.norm, x + i * D);
        });
        for_texts(block, [&](index_t b, index_t first) {
            const index_t length = batch_.lengths[b];
            std::memcpy(row(batch_.out, b), x + first * D, bytes(length));
            std::memset(row(batch_.out, b) + length * D, 0, bytes(batch_.width - length));
        });
    }

  private:
    template <class T>
    T* row(T* data, index_t text) const {
        return data + text * batch_.width * layer_.dim;
    }
    std::size_t bytes(index_t tokens) const {
        return static_cast<std::size_t>(tokens * layer_.dim) * sizeof(float);
    }

    template <class Body>
    void for_texts(const Block& block, const Body& body) const {
        index_t first = 0;
        for (index_t b = block.begin; b < block.end; ++b) {
            body(b, first);
            first += batch_.lengths[b];
        }
    }

    // Alone, a thread takes rows through several products while they are in its cache.
    template <class Body>
    void parts(index_t tokens, const Body& body) const {
        const index_t count = threads_ == 1 ? (tokens + kLinearRows - 1) / kLinearRows : 1;
        for (index_t n = 0; n < count; ++n) {
            const index_t i = tokens * n / count;
            body(i, tokens * (n + 1) / count - i);
        }
    }

    void project(const PackedWeight& weight, Rows<float> x, index_t rows, Activation activation,
                 Rows<float> residual, float* out, index_t out_stride) const {
        linear({rows, x, weight, activation, residual, out, out_stride}, threads_, isa_);
    }

    void normalize(const float* x, index_t rows, const Norm& norm, float* out) const {
        const index_t D = layer_.dim;
        for (index_t i = 0; i < rows; ++i) {
            isa_.linear->normalize(x + i * D, D, norm.weight, norm.bias, norm.eps, out + i * D);
        }
    }

    void attend(const Block& block, const float* qkv, float* context) const {
        const index_t D = layer_.dim, d = D / layer_.heads;
        const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
        for_texts(block, [&](index_t b, index_t first) {
            const index_t length = batch_.lengths[b];
            const auto heads = [&](index_t n) {
                return HeadView{qkv + (first * 3 + n) * D, 0, d, 3 * D};
            };
            flashbertscore::attend({DType::float32, 1, layer_.heads, length, d, scale, &length,
                                    heads(0), heads(1), heads(2), context + first * D},
                                   threads_, isa_);
        });
    }

    const EncoderLayer& layer_;
    const EncoderBatch& batch_;
    int threads_;
    const Isa& isa_;
};

} // namespace

void encode(const EncoderLayer& layer, const EncoderBatch& batch, int threads, const Isa& isa) {
    check_lengths(batch.lengths, batch.texts, batch.width);
    index_t tokens = 0;
    for (index_t b = 0; b < batch.texts; ++b) { tokens += batch.lengths[b]; }
    const index_t weights = layer.dim * (4 * layer.dim + 2 * layer.wide);
    threads = team_size(threads, static_cast<double>(tokens) * static_cast<double>(weights));
    const std::vector<Block> blocks = blocks_of(batch, kLinearRows);
    const index_t count = static_cast<index_t>(blocks.size());
    if (threads > 1 && count < 2 * threads) { // all threads share each product
        const Pass pass(layer, batch, threads, isa);
        for (const Block& block : blocks) { pass.run(block); }
        return;
    }
    const Pass pass(layer, batch, 1, isa);
    share(threads, count, 1, [&](index_t begin, index_t end) {
        for (index_t i = begin; i < end; ++i) { pass.run(blocks[static_cast<std::size_t>(i)]); }
    });
}

} // namespace flashbertscore
