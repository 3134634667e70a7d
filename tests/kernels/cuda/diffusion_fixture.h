// Sequences of block diffusion for the tests of its kernels, with attention over them in float64.
#pragma once

#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/diffusion/block_row.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <ostream>
#include <vector>

namespace kvscope::cuda::test {

struct DiffusionShape {
    int dim, kvHeads, group, page, block;
};
inline void PrintTo(const DiffusionShape& s, std::ostream* out) {
    *out << "dim " << s.dim << ", " << s.kvHeads << " heads of " << s.group << ", page " << s.page << ", block "
         << s.block;
}

/// Three sequences with prefixes of several lengths, the second without a forward; keys and values of all of them.
class CudaDiffusion : public CudaTest, public ::testing::WithParamInterface<DiffusionShape> {
protected:
    static constexpr int kRows = 3;

    void SetUp() override {
        CudaTest::SetUp();
        if (IsSkipped()) return;
        shape = {s.kvHeads * s.group, s.kvHeads, s.dim, s.page};
        maxPages = (longest() + s.block + s.page - 1) / s.page;
        for (int head = 0; head < kRows * s.kvHeads; ++head) headFirst.push_back(std::int64_t(head) * maxPages);
        store = halves(std::size_t(kRows * s.kvHeads * maxPages) * blockElements(s.page, s.dim));
        q = halves(std::size_t(kRows * s.block * shape.queryHeads * s.dim));
        const int firsts[kRows] = {longest() / s.block * s.block, s.block, 7 * s.block};
        for (int row = 0; row < kRows; ++row)
            table.push_back({row, firsts[row], firsts[row], row == 1 ? 0u : std::uint32_t(BlockRow::kTaken)});
    }
    int longest() const { return 1100; }
    BlockRows rowsOf(const OnDevice<BlockRow>& on, const std::uint64_t* active, const OnDevice<std::int64_t>& first) {
        return {shape, kRows, s.block, on.get(), active, first.get()};
    }
    const Half* blockOf(int row, int g, int page) const {
        return store.data() +
               std::size_t(headFirst[std::size_t(row * s.kvHeads + g)] + page) * blockElements(s.page, s.dim);
    }
    double keyAt(int row, int g, int position, int c) const {
        return double(toFloat(blockOf(row, g, position / s.page)[position % s.page * s.dim + c]));
    }
    double valueAt(int row, int g, int position, int c) const {
        return double(toFloat(blockOf(row, g, position / s.page)[s.page * s.dim + c * s.page + position % s.page]));
    }
    double queryAt(int row, int token, int head, int c) const {
        return double(toFloat(q[std::size_t(((row * s.block + token) * shape.queryHeads + head) * s.dim + c)]));
    }
    /// One query over these positions. @return channels, then the log sum
    std::vector<double> attention(int row, int token, int head, const std::vector<int>& positions, double scale) const {
        const int g = head / s.group;
        std::vector<double> out(std::size_t(s.dim), 0.0), logits;
        double most = -std::numeric_limits<double>::infinity(), sum = 0;
        for (const int position : positions) {
            double dot = 0;
            for (int c = 0; c < s.dim; ++c) dot += queryAt(row, token, head, c) * keyAt(row, g, position, c);
            logits.push_back(dot * scale);
            most = std::max(most, logits.back());
        }
        for (std::size_t i = 0; i < positions.size(); ++i) {
            const double p = std::exp(logits[i] - most);
            sum += p;
            for (int c = 0; c < s.dim; ++c) out[std::size_t(c)] += p * valueAt(row, g, positions[i], c);
        }
        for (double& value : out) value = sum > 0 ? value / sum : 0;
        out.push_back(sum > 0 ? most + std::log(sum) : most);
        return out;
    }
    std::vector<int> upTo(int end, int from = 0) const {
        std::vector<int> all(std::size_t(end - from));
        std::iota(all.begin(), all.end(), from);
        return all;
    }

    const DiffusionShape s = GetParam();
    AttentionShape shape;
    int maxPages = 0;
    std::vector<std::int64_t> headFirst;
    std::vector<Half> store, q;
    std::vector<BlockRow> table;
};

} // namespace kvscope::cuda::test
