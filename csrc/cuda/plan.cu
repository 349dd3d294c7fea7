#include "cuda/plan.h"

#include <limits>
#include <numeric>

#include "cuda/align.cuh"
#include "cuda/dispatch.cuh"
#include "cuda/double.cuh"
#include "cuda/trim.cuh"

namespace flashbertscore::cuda {
namespace {

constexpr std::size_t ALIGNMENT = 256;

index_t element_bytes(DType dtype) {
    return dtype == DType::float64 ? 8 : dtype == DType::float32 ? 4 : 2;
}
index_t real_bytes(DType dtype) { return dtype == DType::float64 ? 8 : 4; }

// Whether every row starts at a multiple of 16 bytes and ends at one.
bool rows_aligned(const TokenBatch& batch) {
    const index_t bytes = element_bytes(batch.dtype);
    return reinterpret_cast<std::uintptr_t>(batch.data) % CHUNK_BYTES == 0 &&
           batch.row_stride * bytes % CHUNK_BYTES == 0 &&
           (batch.offsets != nullptr || batch.document_stride * bytes % CHUNK_BYTES == 0) &&
           batch.dim * bytes % CHUNK_BYTES == 0;
}

std::size_t take(std::size_t& end, std::size_t bytes) {
    const std::size_t begin = (end + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    end = begin + bytes;
    return begin;
}

void require_int(const char* what, index_t value) {
    if (value > std::numeric_limits<int>::max() / 2) {
        throw std::invalid_argument(std::string(what) + ": expected at most 2^30, got " +
                                    std::to_string(value));
    }
}

} // namespace

Plan::Plan(const TokenBatch& candidate, const TokenBatch& reference, const PairList& pairs,
           const Device& device, const Limits& limits, bool places)
    : x_(candidate), y_(reference), pairs_(pairs), device_(device), limits_(limits),
      aligned_(rows_aligned(candidate) && rows_aligned(reference)),
      listed_(candidate.offsets || reference.offsets || pairs.pairs),
      masked_(candidate.mask || reference.mask), places_(places), scales_(false) {
    require_int("dim", x_.dim);
    make_chunks();
    lay_out();
}

void Plan::make_chunks() {
    const index_t count = pairs_.count;
    if (count == 0) return;
    const auto choice_of = [&](index_t pair) {
        if (places_) {
            return choose_aligned(x_.dtype, length_x(pair), length_y(pair), aligned_,
                                  device_.shared_bytes);
        }
        return choose(x_.dtype, length_x(pair), length_y(pair), count, aligned_,
                      device_.multiprocessors, device_.shared_bytes);
    };
    if (listed_) {
        order_.resize(static_cast<std::size_t>(count));
        std::iota(order_.begin(), order_.end(), index_t{0});
        struct Rank {
            bool whole;
            int shape;
            index_t work;
        };
        std::vector<Rank> ranks(static_cast<std::size_t>(count));
        for (index_t p = 0; p < count; ++p) {
            require_int("tokens of a document", std::max(length_x(p), length_y(p)));
            const Choice choice = choice_of(p);
            ranks[p] = {!choice.parts, -static_cast<int>(choice.shape),
                        -length_x(p) * length_y(p) - length_x(p) - length_y(p)};
        }
        std::stable_sort(order_.begin(), order_.end(), [&](index_t a, index_t b) {
            return std::tie(ranks[a].whole, ranks[a].shape, ranks[a].work) <
                   std::tie(ranks[b].whole, ranks[b].shape, ranks[b].work);
        });
    } else {
        require_int("tokens of a document", std::max(x_.width, y_.width));
    }
    if (places_ && listed_) {
        index_t begin[2] = {0, 0};
        for (index_t p = 0; p < count; ++p) {
            out_[0].push_back(begin[0]);
            out_[1].push_back(begin[1]);
            begin[0] += length_x(p);
            begin[1] += length_y(p);
        }
    }
    const index_t key_bytes = this->key_bytes() + (places_ && x_.dtype == DType::float64 ? 4 : 0);
    Chunk chunk{};
    for (index_t i = 0; i < count; ++i) {
        const index_t pair = pair_at(i), n = length_x(pair), m = length_y(pair);
        const Choice choice = listed_ || i == 0 ? choice_of(pair) : chunk.choice;
        const TileSize tile = part_tile(x_.dtype, choice.shape);
        const index_t row_blocks = choice.parts ? tile_count(n, tile.tm) : 0;
        const index_t keys = choice.parts ? n + m : 0;
        const bool full = chunk.count >= limits_.tasks ||
                          chunk.row_blocks + row_blocks > limits_.row_blocks ||
                          (chunk.keys + keys) * key_bytes > limits_.key_bytes;
        if (chunk.count != 0 && (full || !(choice == chunk.choice))) {
            chunks_.push_back(chunk);
            chunk = Chunk{};
        }
        if (chunk.count == 0) chunk.begin = i;
        chunk.choice = choice;
        ++chunk.count;
        chunk.row_blocks += row_blocks;
        chunk.keys += keys;
    }
    chunks_.push_back(chunk);
}

void Plan::lay_out() {
    index_t tasks = 0, items = 0, keys = 0;
    scales_ = x_.dtype == DType::float32 || x_.dtype == DType::float64;
    for (const Chunk& chunk : chunks_) {
        scales_ = scales_ || chunk.choice.parts;
        tasks = std::max(tasks, chunk.count);
        if (chunk.choice.parts) {
            items = std::max(items, most_items(chunk.row_blocks, device_.multiprocessors));
        }
        keys = std::max(keys, chunk.keys);
    }
    const index_t real = real_bytes(x_.dtype);
    std::size_t end = 0;
    x_scales_ = take(end, scales_ ? x_.rows() * real : 0);
    y_scales_ = take(end, scales_ ? y_.rows() * real : 0);
    shifted_ = take(end, sizeof(int));
    extents_ = take(end, masked_ ? tasks * 2 * sizeof(int) : 0);
    tasks_ = take(end, listed_ ? tasks * sizeof(Task) : 0);
    items_ = take(end, listed_ ? items * sizeof(Item) : 0);
    keys_ = take(end, keys * key_bytes());
    places_at_ = take(end, places_ && x_.dtype == DType::float64 ? keys * sizeof(int) : 0);
    workspace_ = end;
}

// Lists the tasks of a chunk, and the parts of its pairs, and copies both to the workspace.
void Plan::upload(const Chunk& chunk, Problem& problem, char* workspace, Stream stream) const {
    std::vector<Task> tasks(static_cast<std::size_t>(chunk.count));
    std::vector<Item> items;
    const TileSize tile = part_tile(x_.dtype, chunk.choice.shape);
    index_t keys = 0;
    for (index_t t = 0; t < chunk.count; ++t) {
        const index_t pair = pair_at(chunk.begin + t);
        const index_t c = pairs_.candidate(pair), r = pairs_.reference(pair);
        const index_t n = x_.length(c), m = y_.length(r);
        tasks[t] = {x_.element(c, 0),
                    y_.element(r, 0),
                    x_.first(c),
                    y_.first(r),
                    keys,
                    pair,
                    places_ ? out_[0][static_cast<std::size_t>(pair)] : 0,
                    places_ ? out_[1][static_cast<std::size_t>(pair)] : 0,
                    static_cast<int>(n),
                    static_cast<int>(m)};
        if (!chunk.choice.parts) continue;
        keys += n + m;
        const int rows = tile_count(n, tile.tm), columns = tile_count(m, tile.tn);
        const int range = range_blocks(chunk.row_blocks, columns, device_.multiprocessors);
        for (int column = 0; column < columns; column += range) {
            for (int row = 0; row < rows; ++row) {
                items.push_back(
                    {static_cast<int>(t), row, column, std::min(columns, column + range)});
            }
        }
    }
    copy_to_device(workspace + tasks_, tasks.data(), tasks.size() * sizeof(Task), stream);
    copy_to_device(workspace + items_, items.data(), items.size() * sizeof(Item), stream);
    problem.tasks = reinterpret_cast<const Task*>(workspace + tasks_);
    problem.items = reinterpret_cast<const Item*>(workspace + items_);
    problem.item_count = static_cast<index_t>(items.size());
}

std::string Plan::why_unusable() { return cuda::why_unusable<trim>(); }

void Plan::run(const ScoreOut& out, void* memory, Stream stream,
               const AlignmentOut& alignment) const {
    if (chunks_.empty()) return;
    if (listed_ && is_capturing(stream)) {
        throw std::runtime_error("packed documents cannot be scored in a stream that is captured "
                                 "into a CUDA graph: their schedule is made on the host; score a "
                                 "padded batch");
    }
    char* const workspace = static_cast<char*>(memory);
    const int dim = static_cast<int>(x_.dim);
    const auto side = [&](const TokenBatch& batch, std::size_t scales) {
        return Side{batch.data,
                    batch.row_stride,
                    batch.document_stride,
                    batch.width,
                    batch.mask,
                    batch.weights,
                    scales_ ? workspace + scales : nullptr,
                    reinterpret_cast<int*>(workspace + shifted_)};
    };
    Problem problem{};
    problem.x = side(x_, x_scales_);
    problem.y = side(y_, y_scales_);
    problem.dim = dim;
    problem.precision = out.precision;
    problem.recall = out.recall;
    problem.f1 = out.f1;
    if (places_) problem.alignment = alignment;

    const auto norms = [&](const TokenBatch& batch, const Side& side) {
        const bool padded = batch.offsets == nullptr, aligned = rows_aligned(batch);
        const index_t rows = batch.rows();
        switch (x_.dtype) {
        case DType::bfloat16: return norms_bf16(side, dim, rows, padded, aligned, device_, stream);
        case DType::float16: return norms_fp16(side, dim, rows, padded, aligned, device_, stream);
        case DType::float32: return norms_fp32(side, dim, rows, padded, aligned, device_, stream);
        case DType::float64:
            launch<double_norms>(device_, (rows + 7) / 8, 256, 0, stream, side, dim, rows, padded,
                                 static_cast<double*>(const_cast<void*>(side.scales)));
        }
    };
    if (x_.dtype == DType::bfloat16) fill(workspace + shifted_, 0, sizeof(int), stream);
    if (scales_) {
        norms(x_, problem.x);
        norms(y_, problem.y);
    }

    for (const Chunk& chunk : chunks_) {
        problem.count = chunk.count;
        problem.keys = workspace + keys_;
        problem.places = reinterpret_cast<int*>(workspace + places_at_);
        problem.extents = nullptr;
        if (listed_) {
            upload(chunk, problem, workspace, stream);
        } else {
            problem.begin = chunk.begin;
            const TileSize tile = part_tile(x_.dtype, chunk.choice.shape);
            const int columns = tile_count(y_.width, tile.tn);
            problem.row_blocks = tile_count(x_.width, tile.tm);
            problem.range_blocks =
                range_blocks(problem.row_blocks * chunk.count, columns, device_.multiprocessors);
            problem.column_ranges = (columns + problem.range_blocks - 1) / problem.range_blocks;
            problem.item_count = chunk.count * problem.row_blocks * problem.column_ranges;
        }
        if (masked_) {
            int* extents = reinterpret_cast<int*>(workspace + extents_);
            launch<trim>(device_, (2 * chunk.count + 3) / 4, TRIM_THREADS, 0, stream, problem,
                         extents);
            problem.extents = extents;
        }
        if (chunk.choice.parts) {
            fill(problem.keys, LOWEST_KEY_BYTE, chunk.keys * key_bytes(), stream);
        }
        const std::size_t reduction = AnyShape::REDUCTION_BYTES;
        switch (x_.dtype) {
        case DType::bfloat16: match_bf16(problem, chunk.choice, aligned_, device_, stream); break;
        case DType::float16: match_fp16(problem, chunk.choice, aligned_, device_, stream); break;
        case DType::float32: match_fp32(problem, chunk.choice, aligned_, device_, stream); break;
        case DType::float64:
            launch<double_match<false>>(device_, problem.item_count, DoubleTiles::THREADS,
                                        DoubleTiles::BYTES, stream, problem);
            launch<finish<double, long long, true>>(device_, chunk.count, FINISH_THREADS, reduction,
                                                    stream, problem, 1.0);
            if (places_) {
                fill(problem.places, LOWEST_KEY_BYTE, chunk.keys * sizeof(int), stream);
                launch<double_match<true>>(device_, problem.item_count, DoubleTiles::THREADS,
                                           DoubleTiles::BYTES, stream, problem);
                launch<align<double, long long, true>>(device_, chunk.count, ALIGN_THREADS,
                                                       3 * sizeof(int), stream, problem, 1.0);
            }
            continue;
        }
        if (!chunk.choice.parts) continue;
        const auto conclude = [&]<bool SCALED>(float unscale) {
            if (!places_) {
                launch<finish<float, int, SCALED>>(device_, chunk.count, FINISH_THREADS, reduction,
                                                   stream, problem, unscale);
                return;
            }
            launch<finish<float, Placed, SCALED>>(device_, chunk.count, FINISH_THREADS, reduction,
                                                  stream, problem, unscale);
            launch<align<float, Placed, SCALED>>(device_, chunk.count, ALIGN_THREADS,
                                                 3 * sizeof(int), stream, problem, unscale);
        };
        if (x_.dtype == DType::float32) {
            conclude.template operator()<true>(SPLIT_UNSCALE);
        } else {
            conclude.template operator()<false>(1.0f);
        }
    }
}

} // namespace flashbertscore::cuda
