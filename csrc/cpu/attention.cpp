#include "cpu/attention.h"

#include "core/numeric.h"
#include "core/parallel.h"
#include "core/team.h"
#include "cpu/tiles.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace flashbertscore {
namespace {

constexpr std::size_t kLine = 64; // bytes of a cache line, and of the widest vector

// Memory of a thread, aligned to a line: vectors that straddle two lines take two loads.
class Scratch {
  public:
    explicit Scratch(index_t bytes) : memory_(static_cast<std::size_t>(bytes) + kLine) {}
    void* data() {
        const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(memory_.data());
        return memory_.data() + (kLine - address % kLine) % kLine;
    }

  private:
    std::vector<char> memory_;
};

const void* at(const HeadView& view, index_t text, index_t head, index_t bytes) {
    return static_cast<const char*>(view.data) +
           (text * view.text_stride + head * view.head_stride) * bytes;
}

void attend_to(const AttentionBatch& batch, index_t text, index_t head, const Attention& kernel,
               void* scratch) {
    const index_t bytes = element_bytes(batch.dtype);
    const index_t length = batch.lengths[text];
    const index_t row = batch.heads * batch.dim;
    char* out =
        static_cast<char*>(batch.out) + (text * batch.width * row + head * batch.dim) * bytes;
    for (index_t i = length; i < batch.width; ++i) {
        std::memset(out + i * row * bytes, 0, static_cast<std::size_t>(batch.dim * bytes));
    }
    if (length == 0) { return; }
    kernel.attend({batch.dtype, length, batch.dim, batch.scale, at(batch.q, text, head, bytes),
                   batch.q.token_stride, at(batch.k, text, head, bytes), batch.k.token_stride,
                   at(batch.v, text, head, bytes), batch.v.token_stride, out, row},
                  scratch);
}

} // namespace

void check_lengths(const index_t* lengths, index_t texts, index_t width) {
    for (index_t b = 0; b < texts; ++b) {
        if (lengths[b] < 0 || lengths[b] > width) {
            throw std::invalid_argument("lengths[" + std::to_string(b) + "]: expected 0 to " +
                                        std::to_string(width) + ", got " +
                                        std::to_string(lengths[b]));
        }
    }
}

void attend(const AttentionBatch& batch, int threads, const Isa& isa) {
    check_lengths(batch.lengths, batch.texts, batch.width);
    index_t longest = 0;
    double work = 0.0; // multiply-adds
    for (index_t b = 0; b < batch.texts; ++b) {
        const index_t length = batch.lengths[b];
        longest = std::max(longest, length);
        work += 2.0 * static_cast<double>(length) * static_cast<double>(length * batch.dim);
    }
    work *= static_cast<double>(batch.heads);
    const index_t items = batch.texts * batch.heads;
    const bool in_team = team() != nullptr && threads > 1;
    if (!in_team) {
        threads = useful_threads(work, threads, kAttentionPerThread);
    } else if (work < kAttentionPerTeam) {
        threads = 1;
    }
    // A few heads of a text at a time: they share the text's lines of memory.
    WorkQueue queue(items, threads == 1 ? items : std::max<index_t>(1, items / (16 * threads)));
    const auto body = [&] {
        Scratch scratch(isa.attention->scratch_bytes(longest, batch.dim));
        index_t begin, end;
        while (queue.take(begin, end)) {
            for (index_t i = begin; i < end; ++i) {
                attend_to(batch, i / batch.heads, i % batch.heads, *isa.attention, scratch.data());
            }
        }
    };
    if (in_team && threads > 1) {
        run_in_team(threads, body);
    } else {
        run_workers(threads, [&](int) { body(); });
    }
}

} // namespace flashbertscore
