// Guessed queries against float64.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/methods/lookahead.h"

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

TEST_F(CudaTest, GuessedQueriesAreNormalisedAndRotatedLikeTheLayersOwn) {
    for (const int dim : {64, 128})
        for (const auto& [normed, interleaved] : {std::pair{false, false}, {true, false}, {true, true}, {false, true}})
            for (const bool prompt : {false, true}) {
                const int rows = 5, heads = 3, half = dim / 2, tableRows = 400;
                const auto projected = floats(std::size_t(rows * heads * dim)),
                           cosines = floats(std::size_t(tableRows * half)),
                           sines = floats(std::size_t(tableRows * half)), weight = floats(std::size_t(dim));
                const std::vector<std::int32_t> position{0, 7, 99, 31, 64}, ropeFirst{100, 200, 0, 300, 150};
                const std::vector<std::uint8_t> active{1, 1, 0, 1, 1};
                const OnDevice<float> dprojected(projected), dcos(cosines), dsin(sines), dweight(weight);
                const OnDevice<std::int32_t> dposition(position), dfirst(ropeFirst);
                const OnDevice<std::uint8_t> dactive(active);
                const OnDevice<Half> out(std::size_t(rows * heads * dim));
                GuessArgs a;
                a.rows = rows;
                a.heads = heads;
                a.dim = dim;
                a.projected = dprojected.get();
                a.cos = dcos.get();
                a.sin = dsin.get();
                a.ropeFirst = dfirst.get();
                a.interleaved = interleaved;
                if (prompt) {
                    a.oneSequence = true;
                    a.firstPosition = 33;
                } else {
                    a.position = dposition.get();
                    a.active = dactive.get();
                }
                if (normed) a.norm = dweight.get(), a.eps = 1e-5f;
                a.q = out.bf16();
                rotateGuess(launch, a);
                check(cudaStreamSynchronize(launch.stream), "testing");
                const auto got = out.read();
                for (int row = 0; row < rows; ++row) {
                    const int table =
                        prompt ? 100 + 33 + row : ropeFirst[std::size_t(row)] + position[std::size_t(row)];
                    for (int h = 0; h < heads; ++h) {
                        const std::size_t at = std::size_t((row * heads + h) * dim);
                        if (!prompt && active[std::size_t(row)] == 0) {
                            EXPECT_EQ(got[at], 0xffff) << "an inactive row is left alone";
                            continue;
                        }
                        double squares = 0;
                        for (int c = 0; c < dim; ++c)
                            squares += double(projected[at + std::size_t(c)]) * double(projected[at + std::size_t(c)]);
                        const double inverse = 1 / std::sqrt(squares / dim + 1e-5);
                        const auto value = [&](int c) {
                            const double x = double(projected[at + std::size_t(c)]);
                            return normed ? x * inverse * double(weight[std::size_t(c)]) : x;
                        };
                        for (int c = 0; c < half; ++c) {
                            const double cos = double(cosines[std::size_t(table * half + c)]),
                                         sin = double(sines[std::size_t(table * half + c)]);
                            const int first = interleaved ? 2 * c : c, second = interleaved ? 2 * c + 1 : c + half;
                            const double low = value(first) * cos - value(second) * sin,
                                         high = value(second) * cos + value(first) * sin;
                            // One rounding to bf16: half of 2^-7 of the value, and float32's beside it.
                            EXPECT_NEAR(double(toFloat(got[at + std::size_t(first)])), low,
                                        4e-3 * std::abs(low) + 1e-5);
                            EXPECT_NEAR(double(toFloat(got[at + std::size_t(second)])), high,
                                        4e-3 * std::abs(high) + 1e-5);
                        }
                    }
                }
            }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
