// config.json of every architecture.
#include "core/model/model_config.h"
#include "tests/fuzz/fuzz_target.h"

using namespace kvscope;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    return fuzz::expectOnlyErrors([&] {
        const ModelConfig config = ModelConfig::parse(fuzz::text(data, size), "fuzzed.json");
        (void)config.rope.frequencies(1000);
        (void)config.kvNumbersPerToken();
    });
}
