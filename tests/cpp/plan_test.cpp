// Host-side arithmetic of the CUDA path: which kernel takes what, in what order, in how much
// memory. Needs no device and no embeddings; `make emulate` builds it on the emulation.
#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "cuda/plan.h"

using namespace flashbertscore;
using namespace flashbertscore::cuda;

namespace {

int checks = 0, failures = 0;

void expect(bool ok, const std::string& what) {
    ++checks;
    if (ok) return;
    ++failures;
    std::printf("FAILED %s\n", what.c_str());
}

constexpr index_t MIB = index_t{1} << 20;
const DType ALL[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16};
const Device H200 = {132, 227 * 1024};
const Device A100 = {108, 163 * 1024};
const Device SMALL = {20, 99 * 1024}; // sm_86

TokenBatch packed(DType dtype, const std::vector<index_t>& offsets, index_t dim = 768) {
    return {
        nullptr, dtype,  static_cast<index_t>(offsets.size()) - 1, dim, dim, 0, 0, offsets.data(),
        nullptr, nullptr};
}

TokenBatch padded(DType dtype, index_t documents, index_t width, const std::uint8_t* mask) {
    return {nullptr, dtype, documents, 768, 768, width * 768, width, nullptr, mask, nullptr};
}

std::vector<index_t> equal_documents(index_t count, index_t length) {
    std::vector<index_t> offsets(static_cast<std::size_t>(count) + 1);
    for (std::size_t i = 0; i < offsets.size(); ++i) {
        offsets[i] = static_cast<index_t>(i) * length;
    }
    return offsets;
}

void kernels_are_chosen_by_length() {
    for (DType dtype : {DType::bfloat16, DType::float16, DType::float32}) {
        const bool single = dtype == DType::float32;
        const auto shape = [&](index_t n, index_t m, index_t pairs, const Device& device) {
            return choose(dtype, n, m, pairs, true, device.multiprocessors, device.shared_bytes);
        };
        const index_t many = 10'000;
        expect(shape(32, 1, many, H200) == Choice{Shape::tiny, false}, "32 tokens");
        expect(shape(1, 33, many, H200) == Choice{Shape::small, false}, "33 tokens");
        expect(shape(64, 64, many, H200) == Choice{Shape::small, false}, "64 tokens");
        const Shape middle = single ? Shape::large : Shape::medium;
        expect(shape(65, 2, many, H200) == Choice{middle, false}, "65 tokens");
        expect(shape(129, 2, many, H200) == Choice{Shape::large, false}, "129 tokens");
        expect(shape(512, 512, many, H200) == Choice{Shape::large, false}, "512 tokens");
        expect(shape(512, 513, many, H200) == Choice{Shape::large, true}, "513 tokens");
        expect(shape(129, 2, 131, H200) == Choice{Shape::large, true}, "few pairs are split");
        expect(!shape(128, 128, 1, H200).parts, "short ones are not");
        expect(shape(512, 512, many, A100) == shape(512, 512, many, H200), "A100 as H200");
        expect(shape(512, 512, many, SMALL) == Choice{Shape::any, false}, "less shared memory");
        expect(choose(dtype, 20, 20, many, false, 132, 227 * 1024) == Choice{Shape::any, false},
               "rows that cp.async cannot copy");
    }
}

// What a block asks for is there on every device of sm_80 and up that is given that kernel.
void shared_memory_fits() {
    const int least = 99 * 1024, a100 = 163 * 1024;
    expect(AnyShape::short_bytes() <= least && AnyShape::long_bytes() <= least, "any shape");
    expect(HalfTiny::short_bytes() <= least && HalfSmall::short_bytes() <= least, "16 bits");
    expect(FloatTiny::short_bytes() <= least && FloatSmall::short_bytes() <= least, "float");
    for (int bytes : {HalfMedium::short_bytes(), HalfLarge::short_bytes(), HalfLarge::long_bytes(),
                      FloatLarge::short_bytes(), FloatLarge::long_bytes()}) {
        expect(bytes <= a100, "tiles for A100");
    }
    for (int blocks : {HalfTiny::BLOCKS * (HalfTiny::short_bytes() + 1024),
                       HalfSmall::BLOCKS * (HalfSmall::short_bytes() + 1024),
                       HalfMedium::BLOCKS * (HalfMedium::short_bytes() + 1024),
                       FloatTiny::BLOCKS * (FloatTiny::short_bytes() + 1024),
                       FloatSmall::BLOCKS * (FloatSmall::short_bytes() + 1024)}) {
        expect(blocks <= 228 * 1024, "blocks that registers allow also fit the memory of sm_90");
    }
    expect(HalfLarge::CAPACITY >= WHOLE_LIMIT && FloatLarge::CAPACITY >= WHOLE_LIMIT &&
               AnyShape::CAPACITY >= WHOLE_LIMIT,
           "a whole pair has room");
}

// All blocks of columns are swept once, by no more parts than the workspace has room for.
void parts_cover_a_pair() {
    std::mt19937 random(1);
    for (int round = 0; round < 2000; ++round) {
        const int multiprocessors = 1 + static_cast<int>(random() % 200);
        std::vector<std::pair<int, int>> tasks(1 + random() % 30); // blocks of rows, of columns
        index_t all_rows = 0, items = 0;
        for (auto& [rows, columns] : tasks) {
            rows = tile_count(random() % 5000, 128);
            columns = tile_count(random() % (round % 2 ? 100'000 : 300), 256);
            all_rows += rows;
        }
        for (const auto& [rows, columns] : tasks) {
            const int range = range_blocks(all_rows, columns, multiprocessors);
            const int ranges = (columns + range - 1) / range;
            expect(range >= 1 && range <= columns && index_t{ranges} * range >= columns,
                   "ranges cover the columns");
            items += index_t{rows} * ranges;
        }
        expect(items <= most_items(all_rows, multiprocessors), "parts beyond the workspace");
    }
}

index_t scales(const TokenBatch& x, const TokenBatch& y) {
    return (x.rows() + y.rows()) * (x.dtype == DType::float64 ? 8 : 4);
}

// Beside one scale a token the scratch is bounded, so that together they stay below 256 MiB up to
// 25 million tokens (12 million of float64): 38 GB of bfloat16 at D = 768.
void workspace_is_bounded() {
    for (DType dtype : ALL) {
        const auto check = [&](const Plan& plan, const TokenBatch& x, const TokenBatch& y,
                               const char* what) {
            const auto bytes = static_cast<index_t>(plan.workspace_bytes());
            expect(bytes <= static_cast<index_t>(Plan::SCRATCH_LIMIT) + scales(x, y), what);
            const bool covered = scales(x, y) <= 96 * MIB;
            expect(!covered || bytes <= 256 * MIB, std::string(what) + ": 256 MiB");
        };
        const std::vector<index_t> million = {0, 1'000'000}, one = {0, 1}, none = {0, 0};
        const auto a = packed(dtype, million), b = packed(dtype, one), c = packed(dtype, none);
        for (const Device& device : {H200, A100, SMALL}) {
            check({a, a, {nullptr, 1}, device}, a, a, "1M x 1M");
            check({a, b, {nullptr, 1}, device}, a, b, "1M x 1");
            check({b, a, {nullptr, 1}, device}, b, a, "1 x 1M");
            check({a, c, {nullptr, 1}, device}, a, c, "1M x 0");
        }
        const auto long_offsets = equal_documents(20'000, 600);
        const auto longs = packed(dtype, long_offsets);
        check({longs, longs, {nullptr, 20'000}, H200}, longs, longs, "20,000 long pairs");
        const auto short_offsets = equal_documents(1'000'000, 12);
        const auto shorts = packed(dtype, short_offsets);
        check({shorts, shorts, {nullptr, 1'000'000}, H200}, shorts, shorts, "1M short pairs");
        const std::uint8_t mask = 1;
        const auto rows = padded(dtype, 300'000, 40, &mask),
                   wide = padded(dtype, 8, 1'000'000, &mask);
        check({rows, rows, {nullptr, 300'000}, H200}, rows, rows, "300,000 padded pairs");
        check({wide, wide, {nullptr, 8}, H200}, wide, wide, "8 padded pairs of 1M x 1M");

        // All pairs of 3,000 documents: the list is longer than one launch takes.
        const auto offsets = equal_documents(1'000, 700);
        const auto documents = packed(dtype, offsets);
        std::vector<index_t> pairs;
        for (index_t i = 0; i < 1'000; ++i) {
            for (index_t j = 0; j < 1'000; ++j) pairs.insert(pairs.end(), {i, j});
        }
        check({documents, documents, {pairs.data(), 1'000'000}, H200}, documents, documents,
              "all pairs of 1,000 documents");
    }
    // Short pairs of 16-bit types find their norms themselves: no scale a token.
    const auto offsets = equal_documents(1'000'000, 100);
    const auto huge = packed(DType::bfloat16, offsets);
    const Plan plan(huge, huge, {nullptr, 1'000'000}, H200);
    expect(static_cast<index_t>(plan.workspace_bytes()) <= 160 * MIB, "100M tokens of short pairs");
}

void chunks_cover_all_pairs_longest_first() {
    std::mt19937 random(2);
    for (DType dtype : ALL) {
        std::vector<index_t> x_offsets = {0}, y_offsets = {0};
        const index_t count = 400'000;
        for (index_t p = 0; p < count; ++p) {
            x_offsets.push_back(x_offsets.back() + random() % (p % 100 ? 60 : 2000));
            y_offsets.push_back(y_offsets.back() + random() % (p % 70 ? 90 : 1500));
        }
        const auto x = packed(dtype, x_offsets), y = packed(dtype, y_offsets);
        const Plan plan(x, y, {nullptr, count}, H200);
        std::vector<bool> seen(count);
        index_t next = 0;
        for (const Chunk& chunk : plan.chunks()) {
            expect(chunk.begin == next && chunk.count > 0, "chunks follow one another");
            next += chunk.count;
            index_t last = 0, keys = 0;
            for (index_t i = chunk.begin; i < next; ++i) {
                const index_t pair = plan.pair_at(i), n = x.length(pair), m = y.length(pair);
                seen[pair] = true;
                const index_t work = n * m + n + m;
                if (i > chunk.begin && work > last) expect(false, "longest first");
                last = work;
                keys += n + m;
                const Choice choice = choose(dtype, n, m, count, true, 132, 227 * 1024);
                if (!(choice == chunk.choice)) expect(false, "one kernel a chunk");
            }
            expect(!chunk.choice.parts || chunk.keys == keys, "room for every maximum");
        }
        expect(next == count, "as many as there are");
        expect(std::find(seen.begin(), seen.end(), false) == seen.end(), "every pair once");
    }
    const std::vector<index_t> nothing = {0};
    const Plan none(packed(DType::float32, nothing), packed(DType::float32, nothing), {nullptr, 0},
                    H200);
    expect(none.chunks().empty(), "no pairs, no launches");
}

// Numbers beyond 31 bits.
void large_numbers() {
    const std::vector<index_t> offsets = {0, 3'000'000, 6'000'000};
    const auto x = packed(DType::bfloat16, offsets, 1024);
    expect(x.element(1, 5) == index_t{3'000'005} * 1024, "element of a packed row");
    const auto y = padded(DType::bfloat16, 1 << 12, 1 << 14, nullptr);
    expect(y.element(4095, 16'383) == ((index_t{1} << 26) - 1) * 768, "element of a padded row");
    expect(y.rows() == index_t{1} << 26, "rows");
    const Plan plan(y, y, {nullptr, 1 << 12}, H200);
    index_t count = 0;
    for (const Chunk& chunk : plan.chunks()) count += chunk.count;
    expect(count == 1 << 12, "4,096 pairs of 16,384 tokens");
    const std::vector<index_t> too_long = {0, index_t{1} << 31};
    const auto z = packed(DType::bfloat16, too_long, 8);
    try {
        const Plan refused(z, z, {nullptr, 1}, H200);
        expect(false, "2^31 tokens in one document are refused");
    } catch (const std::invalid_argument& error) {
        expect(std::string(error.what()).find("tokens of a document: expected at most 2^30") == 0,
               "the message names what is too long");
    }
}

} // namespace

int main() {
    kernels_are_chosen_by_length();
    shared_memory_fits();
    parts_cover_a_pair();
    workspace_is_bounded();
    chunks_cover_all_pairs_longest_first();
    large_numbers();
    std::printf("%d checks passed, %d failed\n", checks - failures, failures);
    return failures != 0;
}
