// All pairs. A document meets all of the other side, so it pays to pack it, whatever its length:
//
//   for each group of references         tokens of several, one after the other in panels, L2
//     for each tile of R rows            tokens of candidates, one after the other
//       products with the whole group    [R, columns], L1
//       maxima, and means of a candidate's when its last row has passed
//
// So tiles and panels are full whatever the lengths of documents. What does not fit that, long
// documents and those whose norms must be computed in a wider type, is matched pair by pair. Which
// way a pair goes follows from its own documents, and so do its bits.
#include "cpu/grid.h"

#include "core/interrupt.h"
#include "core/parallel.h"
#include "cpu/greedy_match.h"
#include "cpu/scores.h"
#include "cpu/tiles.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace flashbertscore {
namespace {

// Results of pair (c, r) at element c * candidate_step + r * reference_step.
struct Target {
    ScoreOut out;
    index_t candidate_step;
    index_t reference_step;

    index_t at(index_t c, index_t r) const { return c * candidate_step + r * reference_step; }
};

// References `begin` to `end - 1`, none of them too long.
struct Group {
    index_t begin;
    index_t end;
    index_t columns;
};

// Rows first to first + count - 1 of a candidate, in a tile.
struct Part {
    index_t candidate;
    index_t first;
    index_t count;
};

template <class T, class S>
struct Workspace {
    const Group* group = nullptr; // what is packed
    std::vector<S> y;             // [C, dim] columns of one panel
    std::vector<S> panels;        // [panels, dim / step, C, step]
    std::vector<T> y_scale;       // [columns of the group]
    std::vector<index_t> first;   // [references of the group + 1] their first columns
    std::vector<S> x;             // [R, dim] a tile
    std::vector<T> products;      // [R, panels * C]
    std::vector<T> row_max;       // [references of the group, N] of one candidate
    std::vector<T> column_max;    // [panels * C]
};

template <class T, class S>
class Grid {
  public:
    Grid(const TokenBatch& candidate, const TokenBatch& reference, index_t diagonal,
         const Target& target, const Kernels<T, S>& kernels)
        : candidate_(candidate, kernels), reference_(reference, kernels), diagonal_(diagonal),
          target_(target), kernels_(kernels), dim_(candidate.dim) {}

    void run(int threads);
    // (candidate, reference) of the pairs that `run` leaves out.
    std::vector<index_t> left_out() const;

  private:
    bool fits(const Documents<T, S>& side, index_t d) const {
        return side.count(d) <= kGridTokens && (std::is_same_v<T, S> || !side.extreme(d));
    }
    std::vector<Group> groups() const;
    void pack(const Group& group, Workspace<T, S>& space) const;
    // Matches candidates begin to end - 1, those that fit.
    void match(index_t begin, index_t end, const Group& group, Workspace<T, S>& space) const;
    // Takes the maxima of some rows, and with a candidate's last row its scores.
    void take(const Part& part, const T* products, const Group& group,
              Workspace<T, S>& space) const;
    void finish(index_t c, const Group& group, const Workspace<T, S>& best) const;

    Documents<T, S> candidate_;
    Documents<T, S> reference_;
    index_t diagonal_;
    Target target_;
    const Kernels<T, S>& kernels_;
    index_t dim_;
};

template <class T, class S>
std::vector<Group> Grid<T, S>::groups() const {
    const index_t width = kernels_.columns;
    const index_t most = std::min(kGridColumns, panels_per_block(dim_, width, sizeof(S)) * width);
    const index_t documents = reference_.batch().documents;
    std::vector<Group> found;
    for (index_t begin = 0; begin < documents;) {
        if (!fits(reference_, begin)) {
            ++begin;
            continue;
        }
        // As many as there is room for, or some less, if they leave less of the last panel empty.
        Group best = {begin, begin, 0};
        double filled = 0.0;
        index_t columns = 0;
        for (index_t r = begin; r < documents && fits(reference_, r); ++r) {
            columns += reference_.count(r);
            if (columns > most && r > begin) { break; }
            const double panels = static_cast<double>((columns + width - 1) / width);
            const double share = 2 * columns < most ? 0.0 : static_cast<double>(columns) / panels;
            if (share >= filled) {
                best = {begin, r + 1, columns};
                filled = share;
            }
        }
        found.push_back(best);
        begin = best.end;
    }
    return found;
}

template <class T, class S>
void Grid<T, S>::run(int threads) {
    read_all(candidate_, threads);
    read_all(reference_, threads);
    const std::vector<Group> all = groups();
    const index_t count = static_cast<index_t>(all.size());
    const double work = static_cast<double>(candidate_.batch().rows()) *
                        static_cast<double>(reference_.batch().rows()) * static_cast<double>(dim_);
    const int workers = useful_threads(work, threads);
    // A group's candidates in so many parts that there are some for every thread.
    const index_t parts = workers == 1 ? 1 : 1 + 32 * workers / std::max<index_t>(1, count);
    std::vector<Workspace<T, S>> spaces(static_cast<std::size_t>(workers));
    WorkQueue queue(count * parts, 1);
    run_workers(workers, [&](int worker) {
        Workspace<T, S>& space = spaces[static_cast<std::size_t>(worker)];
        for (index_t item, end; queue.take(item, end);) {
            const Group& group = all[static_cast<std::size_t>(item / parts)];
            const index_t candidates =
                std::min(candidate_.batch().documents, group.end + diagonal_);
            const index_t part = item % parts;
            match(candidates * part / parts, candidates * (part + 1) / parts, group, space);
        }
    });
}

template <class T, class S>
void Grid<T, S>::pack(const Group& group, Workspace<T, S>& space) const {
    const index_t columns = kernels_.columns;
    const index_t panels = (group.columns + columns - 1) / columns;
    space.group = &group;
    space.y_scale.clear();
    space.column_max.resize(static_cast<std::size_t>(panels * columns));
    space.products.resize(static_cast<std::size_t>(kernels_.rows * panels * columns));
    space.panels.resize(static_cast<std::size_t>(panels * columns * dim_));
    space.y.resize(static_cast<std::size_t>(columns * dim_));
    space.first.assign(1, 0);
    index_t at = 0; // column
    S* panel = space.panels.data();
    for (index_t r = group.begin; r < group.end; ++r) {
        const index_t count = reference_.count(r);
        space.first.push_back(at + count);
        space.y_scale.insert(space.y_scale.end(), reference_.scale(r), reference_.scale(r) + count);
        for (index_t i = 0; i < count;) { // as many tokens as the panel has room for
            const index_t column = at % columns;
            const index_t some = std::min(count - i, columns - column);
            reference_.copy(r, i, some, space.y.data() + column * dim_);
            i += some;
            at += some;
            if (at % columns == 0 || at == group.columns) {
                kernels_.pack({space.y.data(), dim_}, column + some, dim_, panel);
                panel += columns * dim_;
            }
        }
    }
}

template <class T, class S>
void Grid<T, S>::match(index_t begin, index_t end, const Group& group,
                       Workspace<T, S>& space) const {
    if (begin == end) { return; }
    if (space.group != &group) { pack(group, space); }
    const index_t pitch = static_cast<index_t>(space.column_max.size());
    space.x.resize(static_cast<std::size_t>(kernels_.rows * dim_));
    const TokenBatch& batch = candidate_.batch();
    const S* const end_of_tokens = static_cast<const S*>(batch.data) + batch.rows() * dim_;
    Rows<S> x = {nullptr, 0}; // the tile
    index_t rows = 0;
    std::vector<Part> parts;
    const auto pass = [&] {
        if (rows == 0) { return; }
        Ahead next; // most likely the next tile
        if (x.data != space.x.data() && x.stride == dim_) {
            next.candidate = {reinterpret_cast<const char*>(x[rows]),
                              std::min(rows * dim_, end_of_tokens - x[rows]) * index_t{sizeof(S)}};
        }
        kernels_.multiply(x, rows, space.panels.data(), pitch / kernels_.columns, dim_,
                          space.products.data(), next);
        const T* products = space.products.data();
        for (const Part& part : parts) {
            take(part, products, group, space);
            products += part.count * pitch;
        }
        parts.clear();
        rows = 0;
    };
    for (index_t c = begin; c < end; ++c) {
        check_interrupt();
        if (!fits(candidate_, c)) { continue; }
        const index_t N = candidate_.count(c);
        if (N == 0) { finish(c, group, space); }
        const bool in_place = candidate_.in_place(c);
        for (index_t i = 0; i < N;) {
            const Rows<S> here = in_place ? candidate_.rows(c, i, 1, nullptr)
                                          : Rows<S>{space.x.data() + rows * dim_, dim_};
            if (rows == kernels_.rows || (rows > 0 && here.data != x[rows])) {
                pass();
                continue;
            }
            if (rows == 0) { x = here; }
            const index_t some = std::min(N - i, kernels_.rows - rows);
            if (!in_place) { candidate_.copy(c, i, some, space.x.data() + rows * dim_); }
            parts.push_back({c, i, some});
            i += some;
            rows += some;
        }
    }
    pass();
}

template <class T, class S>
void Grid<T, S>::take(const Part& part, const T* products, const Group& group,
                      Workspace<T, S>& space) const {
    const index_t c = part.candidate;
    const index_t N = candidate_.count(c);
    const index_t documents = group.end - group.begin;
    if (part.first == 0) {
        space.row_max.resize(static_cast<std::size_t>(documents * N));
        std::fill(space.column_max.begin(), space.column_max.end(),
                  -std::numeric_limits<T>::infinity());
    }
    kernels_.maxima(products, static_cast<index_t>(space.column_max.size()),
                    candidate_.scale(c) + part.first, part.count, space.y_scale.data(),
                    space.first.data(), documents, space.row_max.data() + part.first, N,
                    space.column_max.data());
    if (part.first + part.count == N) { finish(c, group, space); }
}

template <class T, class S>
void Grid<T, S>::finish(index_t c, const Group& group, const Workspace<T, S>& best) const {
    const index_t N = candidate_.count(c);
    const T* row_max = best.row_max.data();
    const T* column_max = best.column_max.data();
    for (index_t r = group.begin; r < group.end; ++r) {
        Scores scores = {0.0, 0.0, 0.0};
        if (!candidate_.finite(c) || !reference_.finite(r)) {
            scores = kNoScores;
        } else if (N > 0 && reference_.count(r) > 0) {
            scores = scores_of(mean(candidate_, c, row_max), mean(reference_, r, column_max));
        }
        write<T>(target_.out, target_.at(c, r), scores);
        row_max += N;
        column_max += reference_.count(r);
    }
}

template <class T, class S>
std::vector<index_t> Grid<T, S>::left_out() const {
    std::vector<index_t> pairs;
    for (index_t c = 0; c < candidate_.batch().documents; ++c) {
        const bool whole = !fits(candidate_, c);
        for (index_t r = std::max<index_t>(0, c - diagonal_); r < reference_.batch().documents;
             ++r) {
            if (whole || !fits(reference_, r)) { pairs.insert(pairs.end(), {c, r}); }
        }
    }
    return pairs;
}

// Scores what a grid leaves out as a list of pairs, and puts the scores where they belong.
template <class T>
void match_rest(const TokenBatch& candidate, const TokenBatch& reference,
                const std::vector<index_t>& pairs, const Target& target, int threads,
                const Isa& isa) {
    const std::size_t count = pairs.size() / 2;
    std::vector<T> precision(count), recall(count), f1(count);
    greedy_match(candidate, reference, {pairs.data(), static_cast<index_t>(count)},
                 {precision.data(), recall.data(), f1.data()}, threads, isa);
    for (std::size_t p = 0; p < count; ++p) {
        const index_t at = target.at(pairs[2 * p], pairs[2 * p + 1]);
        static_cast<T*>(target.out.precision)[at] = precision[p];
        static_cast<T*>(target.out.recall)[at] = recall[p];
        static_cast<T*>(target.out.f1)[at] = f1[p];
    }
}

template <class T, class S>
void match_all(const TokenBatch& candidate, const TokenBatch& reference, index_t diagonal,
               const Target& target, int threads, const Isa& isa, const Kernels<T, S>& kernels) {
    Grid<T, S> grid(candidate, reference, diagonal, target, kernels);
    grid.run(threads);
    const std::vector<index_t> rest = grid.left_out();
    if (!rest.empty()) { match_rest<T>(candidate, reference, rest, target, threads, isa); }
}

} // namespace

void match_grid(const TokenBatch& candidate, const TokenBatch& reference, index_t diagonal,
                const ScoreOut& out, int threads, const Isa& isa) {
    TokenBatch x = candidate, y = reference;
    Target target = {out, reference.documents, 1};
    // Packing is worth the more the more rows meet what is packed: the side with fewer tokens.
    // P(a, b) has the bits of R(b, a).
    if (diagonal >= candidate.documents && candidate.rows() < reference.rows()) {
        std::swap(x, y);
        std::swap(target.out.precision, target.out.recall);
        std::swap(target.candidate_step, target.reference_step);
        diagonal = x.documents;
    }
    if (x.dtype == DType::float64) {
        match_all(x, y, diagonal, target, threads, isa, *isa.float64);
    } else if (x.dtype == DType::bfloat16 && isa.bfloat16 != nullptr &&
               x.dim % isa.bfloat16->step == 0) {
        match_all(x, y, diagonal, target, threads, isa, *isa.bfloat16);
    } else {
        match_all(x, y, diagonal, target, threads, isa, *isa.float32);
    }
}

} // namespace flashbertscore
