#include "tests/core/backend.h"

#include "core/session/engine.h"

#include <gtest/gtest.h>

namespace kvscope::test {
namespace KVSCOPE_TEST_FILE {

/// Skips everything when the tests are asked to run on a GPU that is not there.
class NeedsGpu : public ::testing::Environment {
    void SetUp() override {
        if (!onCuda()) return;
        try {
            requireGpu();
        } catch (const Error& error) {
            GTEST_SKIP() << oneLine(error);
        }
    }
};

const auto* const registered = ::testing::AddGlobalTestEnvironment(new NeedsGpu);

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::test
