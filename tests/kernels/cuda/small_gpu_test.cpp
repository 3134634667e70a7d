// GPUs with 99 KiB of shared memory a thread block, as desktops have: launches ask for no more, and refuse in a
// sentence what does not fit.
#include "tests/kernels/cuda/device.h"

#include "base/error.h"
#include "kernels/cuda/attention/attention_ring.h"
#include "kernels/cuda/linear/packed.h"
#include "kernels/cuda/methods/candidate_attention.h"
#include "kernels/cuda/methods/pages.h"
#include "kernels/cuda/methods/shadow.h"

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

class SmallGpu : public CudaTest {
protected:
    void SetUp() override {
        CudaTest::SetUp();
        small = launch;
        small.blockShared = std::size_t(99) << 10;
    }
    template <class Start> void expectRefused(const Start& start) {
        try {
            start();
            ADD_FAILURE() << "was launched";
        } catch (const Error& error) {
            EXPECT_EQ(error.kind, ErrorKind::Unsupported) << oneLine(error);
        }
    }
    Launch small;
};

TEST_F(SmallGpu, RefusesListsThatItsSharedMemoryDoesNotHold) {
    PageChoiceArgs pages; // 5 bytes a page
    pages.rows = 1;
    pages.maxPages = 99 * 1024 / 5 + 1;
    expectRefused([&] { choosePages(small, pages); });
    ShadowChoiceArgs chunks;
    chunks.rows = 1;
    chunks.memory.shape = {8, 2, 128, 64};
    chunks.memory.chunkTokens = 8;
    chunks.maxChunks = 99 * 1024 / 5 + 1;
    const OnDevice<std::uint8_t> inactive(std::vector<std::uint8_t>{0});
    chunks.active = inactive.get();
    expectRefused([&] { chooseChunks(small, chunks); });
}

TEST_F(SmallGpu, PlansWithTheSharedMemoryOfTheLaunch) {
    const AttentionShape shape{32, 8, 128, 64};
    EXPECT_LT(mostCandidateBlocks(small, shape), mostCandidateBlocks(launch, shape));
    EXPECT_LE(packedFloatCols(small), packedFloatCols(launch));
    EXPECT_LE(std::size_t(packedFloatCols(small)) * sizeof(float), small.blockShared);
    Launch least = launch;
    least.blockShared = std::size_t(48) << 10;
    EXPECT_EQ(ringAttentionFits(launch, shape), launch.clusters);
    EXPECT_FALSE(ringAttentionFits(least, shape)) << "a stage of keys and values takes 32 KiB";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
