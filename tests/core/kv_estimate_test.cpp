// Memory of the tiers before a session exists, by hand.
#include "core/select/method.h"
#include "core/session/kv_estimate.h"

#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

constexpr int kTokens = 1000, kSequences = 3;

KvEstimate estimate(const Model& model, const char* name, Backend backend, bool oracle) {
    const MethodEntry& method = findMethod(name);
    const ParameterValues values = resolveDefaults(method, model.config());
    const SelectionSpec spec = method.make(values, model.config());
    return estimateKv(model, method, {values, spec, model.config(), backend}, {kTokens, 0}, kSequences, {}, oracle);
}

TEST(KvEstimate, OnGpusTheOracleKeepsEveryKeyThatTiersLackOrHoldInAnotherForm) {
    const auto model = Model::load(kDefaultModel);
    const ModelConfig& config = model->config();
    for (const char* name : {"h2o", "snapkv", "double-sparsity", "shadowkv", "infinigen-token", "infllm"}) {
        const MethodEntry& method = findMethod(name);
        const SelectionSpec spec = method.make(resolveDefaults(method, config), config);
        const std::int64_t tokens = std::int64_t((kTokens + spec.blockSize - 1) / spec.blockSize) * spec.blockSize;
        const std::int64_t layers = config.layers - spec.denseLayers;
        const std::int64_t keysAndValues =
            tokens * kSequences * config.kvHeads * layers * 2 * config.headDim * 2; // bf16
        EXPECT_EQ(estimate(*model, name, Backend::Cuda, true).oracleBytes, keysAndValues) << name;
        EXPECT_EQ(estimate(*model, name, Backend::Cuda, false).oracleBytes, 0) << name;
        EXPECT_EQ(estimate(*model, name, Backend::Cpu, true).oracleBytes, 0) << name << ": its store holds all";
    }
    for (const char* name : {"full", "quest", "arkvale"}) // tiers that hold every key
        EXPECT_EQ(estimate(*model, name, Backend::Cuda, true).oracleBytes, 0) << name;
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
