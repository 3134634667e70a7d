// A chat template, and rendering a conversation with it.
#include "core/chat/chat_template.h"
#include "tests/fuzz/fuzz_target.h"

using namespace kvscope;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    return fuzz::expectOnlyErrors([&] {
        const ChatTemplate chat(std::string(fuzz::text(data, size)), {{"bos_token", "<s>"}, {"eos_token", "</s>"}},
                                "fuzzed.jinja");
        fuzz::expectOnlyErrors([&] {
            (void)chat.render(
                {{"system", "Be brief."}, {"user", "Hello, w\u00f6rld"}, {"assistant", "Hi."}, {"user", ""}});
        });
        (void)chat.renderJson(
            R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},)"
            R"({"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"x":[1,2.5]}}}]}],)"
            R"("tools":[{"type":"function","function":{"name":"f","parameters":{}}}],)"
            R"("add_generation_prompt":true})");
    });
}
