// The choice of single tokens on the GPU against a sort of the same scores.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/choice/token_choice.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

/// Best first; equal scores: the lower index; NaN as -inf. The first `wanted`, ascending.
std::vector<std::int32_t> bestOf(const float* scores, int length, int wanted) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(length));
    std::iota(order.begin(), order.end(), 0);
    const auto value = [&](std::int32_t i) {
        return std::isnan(scores[i]) ? -std::numeric_limits<float>::infinity() : scores[i];
    };
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return value(a) > value(b); });
    order.resize(std::size_t(std::min(length, wanted)));
    std::sort(order.begin(), order.end());
    return order;
}

enum class Kind { Normal, Softmax, FewValues, AllEqual, WithNaN };

class CudaTokenChoice : public CudaTest {
protected:
    std::vector<float> scoresOf(Kind kind, std::size_t count) {
        auto scores = floats(count);
        for (float& x : scores) switch (kind) {
            case Kind::Normal:
                break;
            case Kind::Softmax:
                x = std::exp(8 * x) * 1e-9f;
                break;
            case Kind::FewValues:
                x = std::round(2 * x);
                break; // zeros of both signs among them
            case Kind::AllEqual:
                x = -3;
                break;
            case Kind::WithNaN:
                if (const int what = uniform(0, 2); what < 2)
                    x = what == 0 ? std::nanf("") : -std::numeric_limits<float>::infinity();
            }
        return scores;
    }

    void check(Kind kind, int rows, int kvHeads, int maxLength, int wanted, bool byPosition, bool named) {
        SCOPED_TRACE(::testing::Message() << "kind " << int(kind) << ", " << rows << "x" << kvHeads << " lists of "
                                          << maxLength << ", wanted " << wanted);
        const int lists = rows * kvHeads, stride = maxLength + 3, capacity = wanted + 5;
        const auto scores = scoresOf(kind, std::size_t(lists) * std::size_t(stride));
        std::vector<std::int32_t> lengths, positions, ids;
        std::vector<std::uint8_t> active;
        for (int i = 0; i < lists; ++i) lengths.push_back(i == 0 ? maxLength : uniform(1, maxLength));
        for (int row = 0; row < rows; ++row) {
            positions.push_back(lengths[std::size_t(row * kvHeads)] - 1);
            active.push_back(row % 3 != 2);
        }
        for (int i = 0; i < lists * stride; ++i) ids.push_back(i % stride * 7 + 2);
        const OnDevice<float> dscores(scores), tokenScores(std::size_t(lists * capacity));
        const OnDevice<std::int32_t> dlengths(lengths), dpositions(positions), dids(ids),
            tokens(std::size_t(lists * capacity)), count(static_cast<std::size_t>(lists));
        const OnDevice<std::uint8_t> dactive(active);
        TokenChoiceArgs args;
        args.rows = rows;
        args.kvHeads = kvHeads;
        args.active = dactive.get();
        args.scores = dscores.get();
        args.stride = stride;
        if (named) args.ids = dids.get();
        (byPosition ? args.position : args.length) = byPosition ? dpositions.get() : dlengths.get();
        args.maxLength = maxLength;
        args.wanted = wanted;
        args.tokens = tokens.get();
        args.tokenScores = tokenScores.get();
        args.count = count.get();
        args.capacity = capacity;
        chooseTokens(launch, args);
        cuda::check(cudaStreamSynchronize(launch.stream), "choosing");
        const auto got = tokens.read(), counts = count.read();
        const auto gotScores = tokenScores.read();
        for (int i = 0; i < lists; ++i) {
            if (active[std::size_t(i / kvHeads)] == 0) {
                EXPECT_EQ(counts[std::size_t(i)], -1) << "written for an inactive row";
                continue;
            }
            const int length = byPosition ? positions[std::size_t(i / kvHeads)] + 1 : lengths[std::size_t(i)];
            const float* list = scores.data() + std::size_t(i) * std::size_t(stride);
            auto want = bestOf(list, length, wanted);
            ASSERT_EQ(counts[std::size_t(i)], int(want.size())) << "list " << i;
            for (std::size_t j = 0; j < want.size(); ++j) {
                const std::size_t at = std::size_t(i * capacity) + j;
                const float score = list[want[j]];
                ASSERT_TRUE(gotScores[at] == score || (std::isnan(score) && std::isnan(gotScores[at])));
                ASSERT_EQ(got[at], named ? want[j] * 7 + 2 : want[j]) << "list " << i << ", place " << j;
            }
            for (int j = int(want.size()); j < capacity; ++j) EXPECT_EQ(got[std::size_t(i * capacity + j)], -1);
        }
    }
};

TEST_F(CudaTokenChoice, IsASortsBeginningWhateverTheScores) {
    for (const Kind kind : {Kind::Normal, Kind::Softmax, Kind::FewValues, Kind::AllEqual, Kind::WithNaN}) {
        check(kind, 1, 1, 1, 1, true, false);
        check(kind, 4, 2, 700, 64, true, false);
        check(kind, 3, 2, 700, 900, false, true);
        check(kind, 2, 2, uniform(20'000, 40'000), uniform(1, 3000), false, false);
        check(kind, 1, 8, 131'072, 4096, true, false);
    }
}

TEST_F(CudaTokenChoice, SharesListsAmongFewOrManyThreadBlocks) {
    check(Kind::Normal, 64, 8, 5000, 256, true, false);     // each list has one
    check(Kind::Softmax, 1, 2, 500'000, 2048, true, false); // does not fit shared memory
    launch.clusters = false;
    check(Kind::FewValues, 2, 2, 60'000, 2048, true, false);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
