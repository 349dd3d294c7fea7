// The sweep over tiles. For a pair of N x M tokens:
//
//   for each block of columns             reference tokens, packed once into panels, L2
//     for each tile of R rows             candidate tokens as unit vectors, L1
//       match: all panels of the block    row and column maxima, registers
//
// Nothing of size N x M exists; a pair takes N + M maxima and one block of panels.
#include "cpu/greedy_match.h"

#include "core/parallel.h"
#include "cpu/prepare.h"
#include "cpu/tiles.h"

#include <cmath>
#include <limits>
#include <vector>

namespace flashbertscore {
namespace {

template <class T>
constexpr T kNothing = -std::numeric_limits<T>::infinity();

// What one thread needs, grown on demand and kept between pairs.
template <class T>
struct Workspace {
    std::vector<T> x;          // [R, dim] unit rows
    std::vector<T> y;          // [C, dim] unit rows on their way into a panel
    std::vector<T> panels;     // [panels, dim, C]
    std::vector<T> row_max;    // [N]
    std::vector<T> column_max; // [M up to the next multiple of C]
    index_t packed = -1;       // the reference that `panels` holds whole
};

template <class T>
class Matcher {
  public:
    Matcher(const TokenBatch& candidate, const TokenBatch& reference, const PairList& pairs,
            const ScoreOut& out, const Kernels<T>& kernels)
        : candidate_(candidate, kernels), reference_(reference, kernels), pairs_(pairs), out_(out),
          kernels_(kernels), dim_(candidate.dim),
          block_panels_(panels_per_block(dim_, kernels.columns, sizeof(T))) {}

    void run(int threads);

  private:
    double work(index_t p) const {
        return static_cast<double>(candidate_.count(pairs_.candidate(p))) *
               static_cast<double>(reference_.count(pairs_.reference(p))) *
               static_cast<double>(dim_);
    }
    index_t padded(index_t count) const {
        return (count + kernels_.columns - 1) / kernels_.columns * kernels_.columns;
    }
    // True if the scores of pair p follow from a rule alone; then they are written.
    bool trivial(index_t p);
    void pack(index_t reference, index_t first, index_t count, Workspace<T>& space) const;
    // Matches rows taken from `rows` with all columns; row maxima go to row_max[N].
    void sweep(index_t p, WorkQueue& rows, Workspace<T>& space, T* row_max) const;
    void match_alone(index_t p, Workspace<T>& space);
    void match_shared(index_t p, std::vector<Workspace<T>>& spaces);
    void finish(index_t p, const T* row_max, const T* column_max);
    void write(index_t p, double precision, double recall, double f1);

    Documents<T> candidate_;
    Documents<T> reference_;
    PairList pairs_;
    ScoreOut out_;
    const Kernels<T>& kernels_;
    index_t dim_;
    index_t block_panels_;
};

template <class T>
void Matcher<T>::run(int threads) {
    const auto prepare_all = [&](Documents<T>& side) {
        const double elements =
            static_cast<double>(side.batch().rows()) * static_cast<double>(dim_);
        const int workers = useful_threads(elements, threads);
        WorkQueue queue(side.batch().documents, 1 + side.batch().documents / (16 * workers));
        run_workers(workers, [&](int) {
            for (index_t begin, end; queue.take(begin, end);) {
                for (index_t d = begin; d < end; ++d) { side.prepare(d); }
            }
        });
    };
    prepare_all(candidate_);
    prepare_all(reference_);

    double all_work = 0.0;
    for (index_t p = 0; p < pairs_.count; ++p) { all_work += work(p); }
    const int workers = useful_threads(all_work, threads);
    std::vector<Workspace<T>> spaces(static_cast<std::size_t>(workers));

    std::vector<index_t> shared;
    for (index_t p = 0; p < pairs_.count; ++p) {
        if (shared_by_all(work(p), all_work, workers)) { shared.push_back(p); }
    }
    for (const index_t p : shared) {
        if (!trivial(p)) { match_shared(p, spaces); }
    }
    WorkQueue queue(pairs_.count, std::min<index_t>(64, 1 + pairs_.count / (16 * workers)));
    run_workers(workers, [&](int worker) {
        Workspace<T>& space = spaces[static_cast<std::size_t>(worker)];
        for (index_t begin, end; queue.take(begin, end);) {
            for (index_t p = begin; p < end; ++p) {
                if (shared_by_all(work(p), all_work, workers)) { continue; }
                if (!trivial(p)) { match_alone(p, space); }
            }
        }
    });
}

template <class T>
bool Matcher<T>::trivial(index_t p) {
    const index_t c = pairs_.candidate(p);
    const index_t r = pairs_.reference(p);
    if (!candidate_.finite(c) || !reference_.finite(r)) {
        const double nan = std::numeric_limits<double>::quiet_NaN();
        write(p, nan, nan, nan);
        return true;
    }
    if (candidate_.count(c) == 0 || reference_.count(r) == 0) {
        write(p, 0.0, 0.0, 0.0);
        return true;
    }
    return false;
}

template <class T>
void Matcher<T>::pack(index_t reference, index_t first, index_t count, Workspace<T>& space) const {
    const index_t columns = kernels_.columns;
    const index_t panels = padded(count) / columns;
    space.y.resize(static_cast<std::size_t>(columns * dim_));
    if (static_cast<index_t>(space.panels.size()) < panels * columns * dim_) {
        space.panels.resize(static_cast<std::size_t>(panels * columns * dim_));
    }
    for (index_t panel = 0; panel < panels; ++panel) {
        const index_t valid = std::min(columns, count - panel * columns);
        for (index_t j = 0; j < valid; ++j) {
            reference_.unit(reference, first + panel * columns + j, space.y.data() + j * dim_);
        }
        kernels_.pack(space.y.data(), valid, dim_, space.panels.data() + panel * columns * dim_);
    }
}

template <class T>
void Matcher<T>::sweep(index_t p, WorkQueue& rows, Workspace<T>& space, T* row_max) const {
    const index_t c = pairs_.candidate(p);
    const index_t r = pairs_.reference(p);
    const index_t M = reference_.count(r);
    const index_t block = block_panels_ * kernels_.columns; // columns in a block
    space.x.resize(static_cast<std::size_t>(kernels_.rows * dim_));
    space.column_max.assign(static_cast<std::size_t>(padded(M)), kNothing<T>);

    for (index_t begin, end; rows.take(begin, end);) {
        for (index_t column = 0; column < M; column += block) {
            const index_t columns = std::min(block, M - column);
            if (M > block || space.packed != r) {
                pack(r, column, columns, space);
                space.packed = M > block ? -1 : r;
            }
            for (index_t row = begin; row < end; row += kernels_.rows) {
                const index_t count = std::min(kernels_.rows, end - row);
                for (index_t i = 0; i < count; ++i) {
                    candidate_.unit(c, row + i, space.x.data() + i * dim_);
                }
                kernels_.match(space.x.data(), count, space.panels.data(),
                               padded(columns) / kernels_.columns, dim_, row_max + row,
                               space.column_max.data() + column);
            }
        }
    }
}

template <class T>
void Matcher<T>::match_alone(index_t p, Workspace<T>& space) {
    const index_t N = candidate_.count(pairs_.candidate(p));
    space.row_max.assign(static_cast<std::size_t>(N), kNothing<T>);
    WorkQueue rows(N, N);
    sweep(p, rows, space, space.row_max.data());
    finish(p, space.row_max.data(), space.column_max.data());
}

// Threads take runs of rows; each keeps its own column maxima, merged at the end. A maximum does
// not depend on the order in which it is taken, so neither does the score.
template <class T>
void Matcher<T>::match_shared(index_t p, std::vector<Workspace<T>>& spaces) {
    const index_t N = candidate_.count(pairs_.candidate(p));
    const index_t workers = static_cast<index_t>(spaces.size());
    std::vector<T>& row_max = spaces[0].row_max;
    row_max.assign(static_cast<std::size_t>(N), kNothing<T>);
    // Four runs a thread even out their speeds; each run packs the columns again.
    const index_t tiles = (N + kernels_.rows - 1) / kernels_.rows;
    WorkQueue rows(N, (tiles + 4 * workers - 1) / (4 * workers) * kernels_.rows);
    for (Workspace<T>& space : spaces) { space.column_max.clear(); }
    run_workers(static_cast<int>(workers), [&](int worker) {
        sweep(p, rows, spaces[static_cast<std::size_t>(worker)], row_max.data());
    });
    std::vector<T>& column_max = spaces[0].column_max;
    for (std::size_t worker = 1; worker < spaces.size(); ++worker) {
        const std::vector<T>& other = spaces[worker].column_max;
        for (std::size_t j = 0; j < other.size(); ++j) {
            column_max[j] = std::max(column_max[j], other[j]);
        }
    }
    finish(p, row_max.data(), column_max.data());
}

template <class T>
void Matcher<T>::finish(index_t p, const T* row_max, const T* column_max) {
    const auto mean = [](const Documents<T>& side, index_t d, const T* best) {
        double sum = 0.0;
        double weights = 0.0;
        for (index_t i = 0; i < side.count(d); ++i) {
            const double weight = side.weight(d, i);
            sum += weight * static_cast<double>(best[i]);
            weights += weight;
        }
        return sum / weights; // 0 / 0 is NaN: nothing had weight
    };
    const double precision = mean(candidate_, pairs_.candidate(p), row_max);
    const double recall = mean(reference_, pairs_.reference(p), column_max);
    const double sum = precision + recall;
    const bool defined = sum != 0.0 && !std::isnan(sum);
    write(p, precision, recall, defined ? 2.0 * precision * recall / sum : 0.0);
}

template <class T>
void Matcher<T>::write(index_t p, double precision, double recall, double f1) {
    static_cast<T*>(out_.precision)[p] = static_cast<T>(precision);
    static_cast<T*>(out_.recall)[p] = static_cast<T>(recall);
    static_cast<T*>(out_.f1)[p] = static_cast<T>(f1);
}

} // namespace

void greedy_match(const TokenBatch& candidate, const TokenBatch& reference, const PairList& pairs,
                  const ScoreOut& out, int threads, const Isa& isa) {
    if (pairs.count == 0) { return; }
    if (candidate.dtype == DType::float64) {
        Matcher<double>(candidate, reference, pairs, out, isa.float64).run(threads);
    } else {
        Matcher<float>(candidate, reference, pairs, out, isa.float32).run(threads);
    }
}

} // namespace flashbertscore
