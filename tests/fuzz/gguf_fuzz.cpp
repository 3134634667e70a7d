// GGUF: header, metadata as configuration, tensors as weights, tokenizer and chat template.
#include "core/model/gguf_model.h"
#include "core/model/model_config.h"
#include "tests/fuzz/fuzz_target.h"

#include <cstdlib>

using namespace kvscope;

namespace {

void readAll(std::span<const std::byte> bytes) {
    const GgufFile file(bytes, "fuzzed.gguf");
    const TensorTable tensors = ggufTensors({&file, 1});
    for (const auto& [name, tensor] : tensors.tensors()) {
        if (tensor.bytes.empty()) continue;
        // Views lie in the file: their ends are read, so that a sanitizer sees a wrong one.
        const volatile std::byte first = tensor.bytes.front(), last = tensor.bytes.back();
        (void)first, (void)last;
    }
    fuzz::expectOnlyErrors([&] {
        (void)ModelConfig::parse(ggufConfigJson({&file, 1}, tensors), "fuzzed.gguf", ConfigSource::Gguf);
    });
    const TextFiles text = ggufTextFiles(file);
    (void)text.tokenizer.decode(text.tokenizer.encode("Hello, world 12\n"));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    return fuzz::expectOnlyErrors([&] { readAll(fuzz::bytes(data, size)); });
}
