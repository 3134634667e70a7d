// The header of a safetensors file, and the index of a sharded one.
#include "core/model/safetensors.h"
#include "tests/fuzz/fuzz_target.h"

#include <cstdlib>

using namespace kvscope;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::expectOnlyErrors([&] {
        const SafetensorsFile file(fuzz::bytes(data, size), "fuzzed.safetensors");
        for (const auto& [name, tensor] : file.tensors()) {
            if (tensor.bytes.empty()) continue;
            const volatile std::byte first = tensor.bytes.front(), last = tensor.bytes.back();
            (void)first, (void)last;
        }
    });
    return fuzz::expectOnlyErrors([&] {
        for (const std::string& name : shardNames(fuzz::text(data, size), "fuzzed.index.json"))
            if (name.find('/') != name.npos) std::abort(); // would leave the model's folder
    });
}
