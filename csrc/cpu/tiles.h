// How work is cut. Pure functions of sizes, so that tests reach them without data.
#pragma once

#include "core/team.h"
#include "core/views.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace flashbertscore {

// Packed panels of one column block stay in the L2 cache beside a tile of rows. 512 KiB of the
// 1 MiB found on Zen 4 and 5 and the 1.25-2 MiB of recent Xeons.
inline constexpr index_t kBlockBytes = 512 * 1024;

// Panels in a column block.
inline index_t panels_per_block(index_t dim, index_t columns, index_t element_bytes) {
    return std::max<index_t>(1, kBlockBytes / (dim * columns * element_bytes));
}

// Columns of each block that M >= 1 columns are packed in: of nearly equal size, for a last block
// of one panel would take each tile of rows for little.
inline index_t columns_per_block(index_t M, index_t dim, index_t columns, index_t element_bytes) {
    const index_t most = panels_per_block(dim, columns, element_bytes);
    const index_t panels = (M + columns - 1) / columns;
    const index_t blocks = (panels + most - 1) / most;
    return (panels + blocks - 1) / blocks * columns;
}

// Panels of a whole reference up to this size are kept for all its pairs: a share of the L3 cache.
inline constexpr index_t kPackedBytes = 4 * 1024 * 1024;

inline bool stays_packed(index_t columns, index_t dim, index_t element_bytes) {
    return columns * dim * element_bytes <= kPackedBytes;
}

// Most bytes of the next candidate, and of the next reference, that are asked for while a pair is
// matched: beside the panels they have to wait in the same cache.
inline constexpr index_t kAheadBytes = 384 * 1024;

// Packing a side costs about as much as 20 rows of products with it. A pair is matched without when
// its products are few, by its own sizes alone, so that its bits do not depend on other pairs.
inline constexpr index_t kShort = 48;

inline bool is_short(index_t N, index_t M) { return N <= kShort && M <= kShort; }

// Most tokens of a document that is matched with others' in one panel, and most columns of such
// documents: their similarities with a tile of rows stay in the L1 cache beside the rows.
inline constexpr index_t kGridTokens = 128;
inline constexpr index_t kGridColumns = 512;

// Starting a thread costs some 20 us; below this many multiply-adds a worker it does not pay.
inline constexpr double kWorkPerThread = 3e7;

// The same for attention, whose multiply-adds come with exponentials and packing.
inline constexpr double kAttentionPerThread = 4e6;

// And for all threads of a team that waits: handing it the work costs a few microseconds.
inline constexpr double kAttentionPerTeam = 1e6;

// Rows of a linear layer that are multiplied with all of its weight: they stay in the L2 cache.
inline constexpr index_t kLinearRows = 224;

inline int useful_threads(double multiply_adds, int threads, double per_thread = kWorkPerThread) {
    const double useful = multiply_adds / per_thread;
    return useful < 2.0 ? 1 : std::max(1, static_cast<int>(std::min<double>(useful, threads)));
}

// Threads for an operation between two of torch's, by its multiply-adds.
inline int team_size(int threads, double multiply_adds) {
    if (threads <= 1) { return 1; }
    return team() == nullptr ? useful_threads(multiply_adds, threads)
                             : (multiply_adds < kAttentionPerTeam ? 1 : threads);
}

// A pair this large would keep one thread busy after the others have run out of pairs, so all
// threads share its rows.
inline bool shared_by_all(double pair_work, double all_work, int threads) {
    return threads > 1 && pair_work >= kWorkPerThread && pair_work * 2 * threads > all_work;
}

// Pairs with the same reference one after the other, so that it is packed once.
inline std::vector<index_t> by_reference(const PairList& pairs, index_t references) {
    std::vector<index_t> start(static_cast<std::size_t>(references) + 1);
    for (index_t p = 0; p < pairs.count; ++p) {
        ++start[static_cast<std::size_t>(pairs.reference(p)) + 1];
    }
    std::partial_sum(start.begin(), start.end(), start.begin());
    std::vector<index_t> order(static_cast<std::size_t>(pairs.count));
    for (index_t p = 0; p < pairs.count; ++p) {
        order[static_cast<std::size_t>(start[static_cast<std::size_t>(pairs.reference(p))]++)] = p;
    }
    return order;
}

} // namespace flashbertscore
