// tokenizer.json, and encoding with what it describes.
#include "core/model/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz_target.h"

using namespace kvscope;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    return fuzz::expectOnlyErrors([&] {
        const Tokenizer tokenizer(fuzz::text(data, size), "fuzzed.json");
        (void)tokenizer.decode(tokenizer.encode("Hello, w\u00f6rld 12\n\xff  <|bos|>"));
    });
}
