// SparseD's masks against brute force, and what must hold of its runs.
#include "core/diffusion/tile_mask.h"
#include "tests/core/diffusion_model.h"
#include "tests/support/refusal.h"

#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::denoise;
using test::randomSdar;
using test::sdarConfig;
using test::somePrompt;

SessionOptions optionsOf(std::vector<std::pair<std::string, std::string>> settings, const char* method = "sparsed") {
    SessionOptions options;
    options.method = method;
    options.maxNewTokens = 20;
    options.stopAtEos = false;
    options.settings = std::move(settings);
    options.threads = 1;
    return options;
}

TEST(TileMask, KeepsTheBestTilesOfEveryRow) {
    std::mt19937 random(3);
    for (int tiles = 1; tiles <= 9; ++tiles)
        for (const int rest : {1, 7, 16})
            for (const int budget : {1, 16, 33, 64, 1000}) {
                const int prefix = (tiles - 1) * 16 + rest;
                TileMask mask;
                mask.begin(2, 3, prefix, 16);
                ASSERT_EQ(mask.tiles(), tiles);
                std::vector<float> attention;
                for (int i = 0; i < tiles; ++i) attention.push_back(float(random() % 5)); // ties: the lower tile
                mask.choose(1, 2, attention, budget);
                const int kept = std::min(tiles, int(double(tiles) * budget / prefix) + 1);
                int count = 0, tokens = 0;
                for (int i = 0; i < tiles; ++i) {
                    int before = 0;
                    for (int j = 0; j < tiles; ++j)
                        before += attention[std::size_t(j)] > attention[std::size_t(i)] ||
                                  (attention[std::size_t(j)] == attention[std::size_t(i)] && j < i);
                    EXPECT_EQ(mask.row(1, 2)[std::size_t(i)] != 0, before < kept);
                    count += before < kept;
                    tokens += before < kept ? std::min(16, prefix - i * 16) : 0;
                }
                EXPECT_EQ(count, kept);
                EXPECT_FLOAT_EQ(mask.density(1, 2), float(tokens) / float(prefix));
                EXPECT_EQ(mask.density(0, 0), 0);
            }
}

TEST(SparseD, WithEveryTileIsFullAttention) {
    for (const int block : {1, 8, 32, 64}) {
        const auto model = randomSdar(sdarConfig(block));
        const auto full = denoise(model, {somePrompt(75)}, optionsOf({}, "full"));
        for (const char* last : {"dense", "reuse"}) {
            const auto sparse = denoise(model, {somePrompt(75)}, optionsOf({{"budget", "1024"}, {"final", last}}));
            EXPECT_EQ(sparse.generated, full.generated);
            for (const StepRecord& step : sparse.steps)
                for (const DenoiseLayer& layer : step.denoise.layers)
                    if (layer.sparse) {
                        EXPECT_EQ(layer.density, 1);
                    }
        }
    }
}

TEST(SparseD, TheMaskOfABlockStays) {
    const auto run = denoise(randomSdar(sdarConfig(16)), {somePrompt(200)},
                             optionsOf({{"budget", "32"}, {"skip", "0.3"}, {"threshold", "1"}}));
    int sparse = 0;
    for (std::size_t i = 1; i < run.steps.size(); ++i) {
        const StepRecord& step = run.steps[i];
        const DenoiseForward& forward = step.denoise.forwards.front();
        const bool chooses = forward.step >= int(16 * 0.3) + 1 && !forward.final;
        for (const DenoiseLayer& layer : step.denoise.layers) EXPECT_EQ(layer.sparse, chooses);
        for (const SelectionRecord& selection : step.selections) {
            ++sparse;
            if (forward.step == int(16 * 0.3) + 1)
                EXPECT_EQ(selection.kept, -1) << "nothing to compare with";
            else
                EXPECT_EQ(selection.kept, selection.selected) << "the same mask";
        }
    }
    EXPECT_GT(sparse, 0);
    EXPECT_LT(run.summary.densityMean, 1);
}

TEST(SparseD, RefusesTilesThatTheKernelsDoNotTake) {
    NullSink sink;
    const auto model = randomSdar(sdarConfig(16));
    EXPECT_NE(test::refusalOf(
                  [&] {
                      DecodeSession(model, {somePrompt(9)}, optionsOf({{"tile", "24"}}), sink);
                  },
                  "multiple of 16"),
              "");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
