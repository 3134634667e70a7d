// Whether kernels run beside each other, which the transfer loop needs.
#include "kernels/cuda/transfer/transfer_loop.h"

#include "tests/kernels/cuda/device.h"

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

class CudaTransferLoop : public CudaTest {
protected:
    /// What a trial on the launch's stream and another one says, which leaves all words at 0.
    bool runTogether(const Launch& other) const {
        const OnDevice<std::uint32_t> listed(std::vector<std::uint32_t>(3, 0)),
            loaded(std::vector<std::uint32_t>(2, 0));
        const bool together = kernelsRunTogether(launch, other, {listed.get(), loaded.get()});
        EXPECT_EQ(listed.read(), std::vector<std::uint32_t>(3, 0));
        EXPECT_EQ(loaded.read(), std::vector<std::uint32_t>(2, 0));
        return together;
    }
};

TEST_F(CudaTransferLoop, KernelsOfTwoStreamsRunTogether) {
    const Stream second = Stream::make(StreamKind::Urgent);
    Launch other = launch;
    other.stream = second.get();
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(runTogether(other)) << "unless a tool runs kernels one at a time";
}

TEST_F(CudaTransferLoop, KernelsOfOneStreamDoNot) { EXPECT_FALSE(runTogether(launch)); }

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
