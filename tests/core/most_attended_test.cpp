// The most tokens that a step of decoding attends to, beside every step counted by hand.
#include "core/model/model.h"
#include "core/select/method.h"
#include "core/session/most_attended.h"

#include <algorithm>
#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

struct Case {
    int prompt, added, denseLen;
};

constexpr int kBudget = 1024; // 16 blocks of 64

/// A step reads the token generated last: it has all before that and itself cached.
int byHand(const Case& c) {
    int most = 0;
    bool everyStepAttendsToAll = true;
    for (int cached = c.prompt + 1; cached < c.prompt + c.added; ++cached) {
        const int attended = cached < c.denseLen ? cached : std::min(cached, kBudget);
        everyStepAttendsToAll = everyStepAttendsToAll && attended == cached;
        most = std::max(most, attended);
    }
    return everyStepAttendsToAll ? 0 : most;
}

TEST(MostAttended, CountsTheStepsThatAttendToAllBelowDenseLen) {
    const auto model = Model::load(kDefaultModel);
    for (const char* name : {"infllmv2", "dma", "nosa"}) {
        const MethodEntry& method = findMethod(name);
        for (const Case& c : {Case{4900, 100, 0}, Case{4900, 100, 8192}, Case{4900, 100, 4901}, Case{4900, 100, 4902},
                              Case{4900, 100, 4950}, Case{4900, 100, 4999}, Case{4900, 100, 5000},
                              Case{4900, 100, 5001}, Case{1000, 500, 1200}, Case{500, 2000, 800}, Case{500, 200, 0}}) {
            ParameterValues values = resolveDefaults(method, model->config());
            values.set(method.parameters, "dense_len", std::to_string(c.denseLen));
            const SelectionSpec spec = method.make(values, model->config());
            ASSERT_EQ(spec.budgetBlocks() * spec.blockSize, kBudget) << name;
            EXPECT_EQ(mostAttended(method, {values, spec, model->config()}, {c.prompt, c.added}), byHand(c))
                << name << ": " << c.prompt << " tokens and " << c.added << " new ones, dense_len " << c.denseLen;
        }
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
