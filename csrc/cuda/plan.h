// A call of the op on a device: what runs, in what order, and the memory it needs. Made on the
// host from lengths alone; reads no device memory and allocates none.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/views.h"
#include "cuda/heuristics.h"
#include "cuda/runtime.h"

namespace flashbertscore::cuda {

// Bounds of one launch. With these the scratch stays under Plan::SCRATCH_LIMIT; tests take others.
struct Limits {
    index_t tasks = 1 << 18;
    index_t row_blocks = 1 << 21;
    index_t key_bytes = index_t{64} << 20;
};

// Tasks that run in one launch.
struct Chunk {
    Choice choice;
    index_t begin, count; // in the order of Plan::order
    index_t row_blocks;   // of all parts
    index_t keys;         // maxima, of all parts
};

// `data`, `mask`, `weights` of the views are device addresses; `offsets` and `pairs` are read here,
// on the host, and must live until `run` has returned.
class Plan {
  public:
    // `places`: for runs that return an alignment.
    Plan(const TokenBatch& candidate, const TokenBatch& reference, const PairList& pairs,
         const Device& device, const Limits& limits = {}, bool places = false);

    // Bytes of scratch that `run` needs, aligned to 256: at most SCRATCH_LIMIT, whatever N x M and
    // however many pairs, and a scale a token (4 bytes; 8 for float64; none for pairs of 16-bit
    // tokens that blocks take whole). So 256 MiB suffice for 25 million tokens (12 million of
    // float64), whose embeddings take 38 GB and more at D = 768. One pair of more than 16 million
    // tokens takes the few bytes a token that its maxima need.
    std::size_t workspace_bytes() const { return workspace_; }

    // Starts all kernels on `stream`. Never waits. Throws std::runtime_error if a stream that is
    // being captured into a graph is to copy the schedule of packed documents: each replay would
    // copy it again, from memory of the host that is free by then.
    // `alignment`: must have addresses if the plan was made for places; bases are not read.
    void run(const ScoreOut& out, void* workspace, Stream stream,
             const AlignmentOut& alignment = {}) const;

    const std::vector<Chunk>& chunks() const { return chunks_; }

    // Why none of the kernels can run on the current device; empty if they can.
    static std::string why_unusable();

    static constexpr std::size_t SCRATCH_LIMIT = std::size_t{160} << 20;

    // The pair that is i-th in line.
    index_t pair_at(index_t i) const { return order_.empty() ? i : order_[i]; }

  private:
    index_t length_x(index_t pair) const { return x_.length(pairs_.candidate(pair)); }
    index_t length_y(index_t pair) const { return y_.length(pairs_.reference(pair)); }
    index_t key_bytes() const { return x_.dtype == DType::float64 || places_ ? 8 : 4; }
    void make_chunks();
    void lay_out();
    void upload(const Chunk& chunk, struct Problem& problem, char* workspace, Stream stream) const;

    TokenBatch x_, y_;
    PairList pairs_;
    Device device_;
    Limits limits_;
    bool aligned_;
    bool listed_; // tasks are listed on the host; else padded documents, paired one to one
    bool masked_;
    bool places_;
    bool scales_;                // a norms kernel runs first
    std::vector<index_t> order_; // pairs by choice, longest first; empty: as they come
    std::vector<Chunk> chunks_;
    // Offsets into the workspace.
    std::size_t x_scales_ = 0, y_scales_ = 0, shifted_ = 0, extents_ = 0, tasks_ = 0, items_ = 0;
    std::size_t keys_ = 0, places_at_ = 0;
    std::vector<index_t> out_[2]; // where the alignment of each pair begins, of listed pairs
    std::size_t workspace_ = 0;
};

} // namespace flashbertscore::cuda
