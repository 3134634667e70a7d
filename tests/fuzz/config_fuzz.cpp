// config.json of every architecture, and what generation_config.json adds to one.
#include "core/model/generation_config.h"
#include "core/model/model_config.h"
#include "tests/fuzz/fuzz_target.h"

using namespace kvscope;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::expectOnlyErrors([&] {
        ModelConfig config;
        config.vocab = 100;
        addGenerationConfig(fuzz::text(data, size), "fuzzed.json", config);
    });
    return fuzz::expectOnlyErrors([&] {
        const ModelConfig config = ModelConfig::parse(fuzz::text(data, size), "fuzzed.json");
        (void)config.rope.frequencies(1000);
        (void)config.kvNumbersPerToken();
    });
}
