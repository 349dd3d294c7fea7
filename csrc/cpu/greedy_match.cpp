// The sweep over tiles. For a pair of N x M tokens:
//
//   for each block of columns             reference tokens, packed once into panels, L2
//     for each tile of R rows             candidate tokens where they lie, L1
//       match: all panels of the block    row and column maxima, registers
//
// and for a short pair all of it at once, without panels. Memory is slower than one core's products
// for short pairs: so each call of a kernel asks for what the next ones will read.
//
// Nothing of size N x M exists; a pair takes N + M maxima and its panels, bounded (tiles.h).
#include "cpu/greedy_match.h"

#include "core/parallel.h"
#include "cpu/ahead.h"
#include "cpu/prepare.h"
#include "cpu/scores.h"
#include "cpu/tiles.h"

#include <limits>
#include <type_traits>
#include <vector>

namespace flashbertscore {
namespace {

template <class T>
constexpr T kNothing = -std::numeric_limits<T>::infinity();

// Some milliseconds of work.
constexpr index_t kTilesBetweenChecks = 64;

// What one thread needs, grown on demand and kept between pairs.
template <class T, class S>
struct Workspace {
    std::vector<S> x;          // [R, dim] rows that cannot be read in place
    std::vector<S> y;          // [C, dim] likewise
    std::vector<S> panels;     // [panels, dim / step, C, step], of a block or of a whole reference
    std::vector<T> y_scale;    // [panels * C]
    std::vector<T> row_max;    // [N]
    std::vector<T> column_max; // [M up to the next multiple of C]
    std::vector<Place<T>> row_place;    // [N] where those are, if they are asked for
    std::vector<Place<T>> column_place; // [M up to the next multiple of C]
    index_t packed = -1;                // the reference that `panels` holds whole
    index_t columns = 0;                // its columns that are packed so far
};

template <class T, class S>
class Matcher {
  public:
    Matcher(const TokenBatch& candidate, const TokenBatch& reference, const PairList& pairs,
            const ScoreOut& out, const AlignmentOut& alignment, const Kernels<T, S>& kernels)
        : candidate_(candidate, kernels), reference_(reference, kernels), pairs_(pairs), out_(out),
          alignment_(alignment), kernels_(kernels), dim_(candidate.dim) {}

    void run(int threads);
    std::vector<index_t> left_out() const;

  private:
    bool extreme(index_t p) const {
        return candidate_.extreme(pairs_.candidate(p)) || reference_.extreme(pairs_.reference(p));
    }
    double work(index_t p) const {
        return static_cast<double>(candidate_.batch().length(pairs_.candidate(p))) *
               static_cast<double>(reference_.batch().length(pairs_.reference(p))) *
               static_cast<double>(dim_);
    }
    // Only tokens count, so that the choice of kernel, and with it the bits, does not depend on
    // padding, threads or other pairs. The documents of pair p must be located.
    bool short_by_tokens(index_t p) const {
        return is_short(candidate_.count(pairs_.candidate(p)),
                        reference_.count(pairs_.reference(p)));
    }
    // What pair `next` reads after pair p.
    Ahead reads(index_t next, index_t p) const {
        const index_t r = pairs_.reference(next);
        return {memory_of(candidate_.batch(), pairs_.candidate(next)),
                r == pairs_.reference(p) ? Memory{} : memory_of(reference_.batch(), r)};
    }
    index_t padded(index_t count) const {
        return (count + kernels_.columns - 1) / kernels_.columns * kernels_.columns;
    }
    // Locates the tokens of pair p and, if asked to or where nothing is matched, reads them, unless
    // that has been done. Else they are read where they are matched, and so come from memory once.
    void read(index_t p, bool whole);
    // Writes the scores of pair p if they follow from a rule alone. True if there is nothing (more)
    // to match here.
    bool settled(index_t p);
    // Packs columns first .. first + count - 1 of a reference to column `at` of the panels.
    void pack(index_t reference, index_t first, index_t count, index_t at, Workspace<T, S>& space);
    // Room for `count` rows of a document in `scratch`, if it needs any.
    S* scratch(const Documents<T, S>& side, index_t document, index_t count,
               std::vector<S>& scratch) const;
    void match_short(index_t p, Workspace<T, S>& space, const Ahead& ahead);
    // Matches rows taken from `rows` with all columns; row maxima go to row_max[N].
    void sweep(index_t p, WorkQueue& rows, Workspace<T, S>& space, T* row_max, Place<T>* row_place,
               const Ahead& ahead);
    void match_alone(index_t p, Workspace<T, S>& space, const Ahead& ahead);
    void match_shared(index_t p, std::vector<Workspace<T, S>>& spaces);
    // Writes the scores of pair p: by a rule, or the means of its maxima.
    void finish(index_t p, const Workspace<T, S>& best);
    // Writes the alignment of the tokens of one side of pair p.
    void align(index_t p, const Documents<T, S>& own, index_t d, const Documents<T, S>& other,
               index_t e, const T* best, const Place<T>* places, std::int32_t* index,
               T* similarity) const;
    void align(index_t p, const Workspace<T, S>* best) const; // null: there are no matches

    Documents<T, S> candidate_;
    Documents<T, S> reference_;
    PairList pairs_;
    ScoreOut out_;
    AlignmentOut alignment_;
    const Kernels<T, S>& kernels_;
    index_t dim_;
};

template <class T, class S>
void Matcher<T, S>::run(int threads) {
    std::vector<index_t> order; // empty: as they are
    if (pairs_.pairs) {
        read_all(candidate_, threads);
        read_all(reference_, threads);
        order = by_reference(pairs_, reference_.batch().documents);
    }
    const auto pair = [&order](index_t i) {
        return order.empty() ? i : order[static_cast<std::size_t>(i)];
    };
    double all_work = 0.0;
    for (index_t p = 0; p < pairs_.count; ++p) { all_work += work(p); }
    const int workers = useful_threads(all_work, threads);
    std::vector<Workspace<T, S>> spaces(static_cast<std::size_t>(workers));

    std::vector<index_t> shared;
    for (index_t p = 0; p < pairs_.count; ++p) {
        if (shared_by_all(work(p), all_work, workers)) { shared.push_back(p); }
    }
    for (const index_t p : shared) {
        read(p, true);
        if (settled(p)) { continue; }
        // Large by its rows, it can be short by its tokens: masked rows are no tokens.
        if (short_by_tokens(p)) {
            match_alone(p, spaces[0], {});
        } else {
            match_shared(p, spaces);
        }
    }
    WorkQueue queue(pairs_.count, std::min<index_t>(64, 1 + pairs_.count / (64 * workers)));
    run_workers(workers, [&](int worker) {
        Workspace<T, S>& space = spaces[static_cast<std::size_t>(worker)];
        index_t i, end;
        const auto take = [&] {
            check_interrupt();
            return queue.take(i, end);
        };
        for (bool more = take(); more;) {
            const index_t p = pair(i);
            // Known before p is matched, which asks for what comes next.
            if (++i == end) { more = take(); }
            if (shared_by_all(work(p), all_work, workers)) { continue; }
            read(p, false);
            if (settled(p)) { continue; }
            match_alone(p, space, more ? reads(pair(i), p) : Ahead{});
        }
    });
}

template <class T, class S>
void Matcher<T, S>::read(index_t p, bool whole) {
    if (pairs_.pairs) { return; } // documents of a list may meet again: all are read
    candidate_.locate(p);
    reference_.locate(p);
    if (whole || candidate_.count(p) == 0 || reference_.count(p) == 0) {
        candidate_.read(p, candidate_.count(p));
        reference_.read(p, reference_.count(p));
    }
}

template <class T, class S>
bool Matcher<T, S>::settled(index_t p) {
    const index_t c = pairs_.candidate(p);
    const index_t r = pairs_.reference(p);
    if (!candidate_.finite(c) || !reference_.finite(r)) {
        write<T>(out_, p, kNoScores);
        if (alignment_) { align(p, nullptr); }
        return true;
    }
    if (candidate_.count(c) == 0 || reference_.count(r) == 0) {
        write<T>(out_, p, {0.0, 0.0, 0.0});
        if (alignment_) { align(p, nullptr); }
        return true;
    }
    if constexpr (!std::is_same_v<T, S>) { return extreme(p); }
    return false;
}

template <class T, class S>
S* Matcher<T, S>::scratch(const Documents<T, S>& side, index_t document, index_t count,
                          std::vector<S>& scratch) const {
    const std::size_t size = static_cast<std::size_t>(count * dim_);
    if (!side.in_place(document) && scratch.size() < size) { scratch.resize(size); }
    return scratch.data();
}

template <class T, class S>
void Matcher<T, S>::pack(index_t reference, index_t first, index_t count, index_t at,
                         Workspace<T, S>& space) {
    const index_t columns = kernels_.columns;
    const index_t panels = padded(count) / columns;
    const std::size_t end = static_cast<std::size_t>(at + panels * columns);
    if (space.y_scale.size() < end) {
        space.y_scale.resize(end);
        space.panels.resize(end * static_cast<std::size_t>(dim_));
    }
    for (index_t panel = 0; panel < panels; ++panel) {
        const index_t column = first + panel * columns;
        const index_t valid = std::min(columns, first + count - column);
        reference_.read(reference, column + valid);
        S* y = scratch(reference_, reference, columns, space.y);
        kernels_.pack(reference_.rows(reference, column, valid, y), valid, dim_,
                      space.panels.data() + (at + panel * columns) * dim_);
    }
    const T* scale = reference_.scale(reference) + first;
    T* out = space.y_scale.data() + at;
    for (index_t i = 0; i < panels * columns; ++i) { out[i] = scale[std::min(i, count - 1)]; }
}

template <class T, class S>
void Matcher<T, S>::sweep(index_t p, WorkQueue& rows, Workspace<T, S>& space, T* row_max,
                          Place<T>* row_place, const Ahead& ahead) {
    const index_t c = pairs_.candidate(p);
    const index_t r = pairs_.reference(p);
    const index_t M = reference_.count(r);
    const index_t block = columns_per_block(M, dim_, kernels_.columns, sizeof(S));
    space.column_max.assign(static_cast<std::size_t>(padded(M)), kNothing<T>);
    if (alignment_) { space.column_place.assign(static_cast<std::size_t>(padded(M)), 0); }
    // A reference that may meet more candidates is kept whole, if it is not too long for that.
    const bool whole = pairs_.pairs && stays_packed(padded(M), dim_, sizeof(S));
    if (!whole || space.packed != r) {
        space.packed = whole ? r : -1;
        space.columns = 0;
    }

    for (index_t begin, end; rows.take(begin, end);) {
        const index_t tiles = (end - begin + kernels_.rows - 1) / kernels_.rows;
        const auto first = [&](index_t tile) { // of equal size, or one row apart
            return begin + (end - begin) * tile / tiles;
        };
        for (index_t column = 0; column < M; column += block) {
            const index_t columns = std::min(block, M - column);
            const index_t at = whole ? column : 0;
            if (!whole || space.columns < column + columns) {
                pack(r, column, columns, at, space);
                space.columns = column + columns;
            }
            // Asked for by the tiles of this block: what is packed after it, and a tile of rows.
            const index_t left = M - column - columns;
            const Memory packed_next =
                left > 0 ? memory_of(reference_, r, column + columns, std::min(block, left))
                         : ahead.reference;
            for (index_t tile = 0; tile < tiles; ++tile) {
                if (tile % kTilesBetweenChecks == 0) { check_interrupt(); }
                const index_t row = first(tile), count = first(tile + 1) - row;
                candidate_.read(c, row + count);
                const Rows<S> x =
                    candidate_.rows(c, row, count, scratch(candidate_, c, count, space.x));
                Ahead next = {{}, part(packed_next, tile, tiles)};
                if (tile + 1 < tiles) {
                    next.candidate = memory_of(candidate_, c, row + count, count);
                } else if (left > 0) {
                    next.candidate = memory_of(candidate_, c, begin, first(1) - begin);
                } else {
                    next.candidate = part(ahead.candidate, 0, tiles);
                }
                const T* x_scale = candidate_.scale(c) + row;
                const index_t panels = padded(columns) / kernels_.columns;
                T* column_max = space.column_max.data() + column;
                if (alignment_) {
                    kernels_.match_places(
                        x, x_scale, count, space.panels.data() + at * dim_,
                        space.y_scale.data() + at, panels, dim_, row_max + row, column_max, next,
                        {row, column, row_place + row, space.column_place.data() + column});
                } else {
                    kernels_.match(x, x_scale, count, space.panels.data() + at * dim_,
                                   space.y_scale.data() + at, panels, dim_, row_max + row,
                                   column_max, next);
                }
            }
        }
    }
}

template <class T, class S>
void Matcher<T, S>::match_short(index_t p, Workspace<T, S>& space, const Ahead& ahead) {
    const index_t c = pairs_.candidate(p);
    const index_t r = pairs_.reference(p);
    const index_t N = candidate_.count(c);
    const index_t M = reference_.count(r);
    const auto match = [&](bool fresh) {
        space.row_max.assign(static_cast<std::size_t>(N), kNothing<T>);
        space.column_max.assign(static_cast<std::size_t>(M), kNothing<T>);
        const Side<T, S> x = {candidate_.rows(c, 0, N, scratch(candidate_, c, N, space.x)), N,
                              candidate_.scale(c), space.row_max.data()};
        const Side<T, S> y = {reference_.rows(r, 0, M, scratch(reference_, r, M, space.y)), M,
                              reference_.scale(r), space.column_max.data()};
        if (!alignment_) { return kernels_.match_short(x, y, dim_, fresh, ahead); }
        space.row_place.assign(static_cast<std::size_t>(N), 0);
        space.column_place.assign(static_cast<std::size_t>(M), 0);
        return kernels_.match_short_places(
            x, y, dim_, fresh, ahead, {0, 0, space.row_place.data(), space.column_place.data()});
    };
    if (candidate_.fresh(c) && reference_.fresh(r) && match(true)) {
        candidate_.was_read(c);
        reference_.was_read(r);
        return;
    }
    candidate_.read(c, N);
    reference_.read(r, M);
    if (!settled(p)) { match(false); }
}

template <class T, class S>
void Matcher<T, S>::match_alone(index_t p, Workspace<T, S>& space, const Ahead& ahead) {
    if (short_by_tokens(p)) {
        match_short(p, space, ahead);
    } else {
        const index_t N = candidate_.count(pairs_.candidate(p));
        space.row_max.assign(static_cast<std::size_t>(N), kNothing<T>);
        if (alignment_) { space.row_place.assign(static_cast<std::size_t>(N), 0); }
        WorkQueue rows(N, N);
        sweep(p, rows, space, space.row_max.data(), space.row_place.data(), ahead);
    }
    finish(p, space);
}

// Threads take runs of rows; each keeps its own column maxima, merged at the end. A maximum does
// not depend on the order in which it is taken, so neither does the score.
template <class T, class S>
void Matcher<T, S>::match_shared(index_t p, std::vector<Workspace<T, S>>& spaces) {
    const index_t N = candidate_.count(pairs_.candidate(p));
    const index_t workers = static_cast<index_t>(spaces.size());
    std::vector<T>& row_max = spaces[0].row_max;
    row_max.assign(static_cast<std::size_t>(N), kNothing<T>);
    std::vector<Place<T>>& row_place = spaces[0].row_place;
    if (alignment_) { row_place.assign(static_cast<std::size_t>(N), 0); }
    // Four runs a thread even out their speeds; each run packs the columns again.
    const index_t tiles = (N + kernels_.rows - 1) / kernels_.rows;
    WorkQueue rows(N, (tiles + 4 * workers - 1) / (4 * workers) * kernels_.rows);
    for (Workspace<T, S>& space : spaces) { space.column_max.clear(); }
    run_workers(static_cast<int>(workers), [&](int worker) {
        sweep(p, rows, spaces[static_cast<std::size_t>(worker)], row_max.data(), row_place.data(),
              {});
    });
    std::vector<T>& column_max = spaces[0].column_max;
    for (std::size_t worker = 1; worker < spaces.size(); ++worker) {
        const std::vector<T>& other = spaces[worker].column_max;
        for (std::size_t j = 0; j < other.size(); ++j) {
            if (alignment_) { // runs of rows in any order: of equals the lowest row
                Place<T>& place = spaces[0].column_place[j];
                const Place<T> there = spaces[worker].column_place[j];
                if (other[j] > column_max[j] || (other[j] == column_max[j] && there < place)) {
                    place = there;
                }
            }
            column_max[j] = std::max(column_max[j], other[j]);
        }
    }
    finish(p, spaces[0]);
}

template <class T, class S>
void Matcher<T, S>::align(index_t p, const Documents<T, S>& own, index_t d,
                          const Documents<T, S>& other, index_t e, const T* best,
                          const Place<T>* places, std::int32_t* index, T* similarity) const {
    const bool finite =
        candidate_.finite(pairs_.candidate(p)) && reference_.finite(pairs_.reference(p));
    const index_t length = own.batch().length(d);
    std::fill(index, index + length, -1);
    std::fill(similarity, similarity + length, T(0));
    const T* scale = own.scale(d);
    for (index_t i = 0; i < own.count(d); ++i) {
        const index_t row = own.row(d, i);
        if (best) {
            index[row] = static_cast<std::int32_t>(other.row(e, places[i]));
            similarity[row] = best[i] * scale[i];
        } else if (!finite) {
            similarity[row] = std::numeric_limits<T>::quiet_NaN();
        }
    }
}

template <class T, class S>
void Matcher<T, S>::align(index_t p, const Workspace<T, S>* best) const {
    const index_t c = pairs_.candidate(p), r = pairs_.reference(p);
    const index_t x = alignment_.candidate_base[p], y = alignment_.reference_base[p];
    align(p, candidate_, c, reference_, r, best ? best->row_max.data() : nullptr,
          best ? best->row_place.data() : nullptr, alignment_.candidate_index + x,
          static_cast<T*>(alignment_.candidate_similarity) + x);
    align(p, reference_, r, candidate_, c, best ? best->column_max.data() : nullptr,
          best ? best->column_place.data() : nullptr, alignment_.reference_index + y,
          static_cast<T*>(alignment_.reference_similarity) + y);
}

template <class T, class S>
void Matcher<T, S>::finish(index_t p, const Workspace<T, S>& best) {
    if (settled(p)) { return; } // a token read on the way may have decided it
    if (alignment_) { align(p, &best); }
    write<T>(out_, p,
             scores_of(mean(candidate_, pairs_.candidate(p), best.row_max.data()),
                       mean(reference_, pairs_.reference(p), best.column_max.data())));
}

// Pairs that a matcher of S leaves out: a document of theirs must be computed in T throughout.
template <class T, class S>
std::vector<index_t> Matcher<T, S>::left_out() const {
    std::vector<index_t> found;
    if constexpr (!std::is_same_v<T, S>) {
        for (index_t p = 0; p < pairs_.count; ++p) {
            if (extreme(p)) { found.push_back(p); }
        }
    }
    return found;
}

// Matches some of the pairs on their own and puts their scores where they belong.
void match_some(const TokenBatch& candidate, const TokenBatch& reference, const PairList& pairs,
                const ScoreOut& out, const AlignmentOut& alignment, int threads, const Isa& isa,
                const std::vector<index_t>& some) {
    std::vector<index_t> chosen, bases[2];
    for (const index_t p : some) {
        chosen.push_back(pairs.candidate(p));
        chosen.push_back(pairs.reference(p));
        if (!alignment) { continue; }
        bases[0].push_back(alignment.candidate_base[p]);
        bases[1].push_back(alignment.reference_base[p]);
    }
    AlignmentOut there = alignment;
    there.candidate_base = bases[0].data();
    there.reference_base = bases[1].data();
    const index_t count = static_cast<index_t>(some.size());
    std::vector<float> precision(some.size()), recall(some.size()), f1(some.size());
    Matcher<float, float>(candidate, reference, {chosen.data(), count},
                          {precision.data(), recall.data(), f1.data()}, there, *isa.float32)
        .run(threads);
    for (std::size_t i = 0; i < some.size(); ++i) {
        static_cast<float*>(out.precision)[some[i]] = precision[i];
        static_cast<float*>(out.recall)[some[i]] = recall[i];
        static_cast<float*>(out.f1)[some[i]] = f1[i];
    }
}

} // namespace

void greedy_match(const TokenBatch& candidate, const TokenBatch& reference, const PairList& pairs,
                  const ScoreOut& out, int threads, const Isa& isa, const AlignmentOut& wanted) {
    if (pairs.count == 0) { return; }
    AlignmentOut alignment = wanted;
    std::vector<index_t> bases[2];
    if (alignment) {
        index_t base[2] = {0, 0};
        for (index_t p = 0; p < pairs.count; ++p) {
            bases[0].push_back(base[0]);
            bases[1].push_back(base[1]);
            base[0] += candidate.length(pairs.candidate(p));
            base[1] += reference.length(pairs.reference(p));
        }
        alignment.candidate_base = bases[0].data();
        alignment.reference_base = bases[1].data();
    }
    if (candidate.dtype == DType::float64) {
        Matcher<double, double>(candidate, reference, pairs, out, alignment, *isa.float64)
            .run(threads);
    } else if (candidate.dtype == DType::bfloat16 && isa.bfloat16 != nullptr &&
               candidate.dim % isa.bfloat16->step == 0) {
        Matcher<float, bfloat16> matcher(candidate, reference, pairs, out, alignment,
                                         *isa.bfloat16);
        matcher.run(threads);
        const std::vector<index_t> rest = matcher.left_out();
        if (!rest.empty()) {
            match_some(candidate, reference, pairs, out, alignment, threads, isa, rest);
        }
    } else {
        Matcher<float, float>(candidate, reference, pairs, out, alignment, *isa.float32)
            .run(threads);
    }
}

} // namespace flashbertscore
