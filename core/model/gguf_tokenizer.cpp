// Byte-level BPE from GGUF metadata: the arrays say what tokenizer.json says, but for the pattern, which has a name.
#include "core/model/gguf_model.h"

#include "core/model/json_text.h"

#include <fmt/format.h>

namespace kvscope {
namespace {

using Json = nlohmann::json;

constexpr int kControl = 3, kUserDefined = 4; // token types that are looked for in the text first

Json split(const char* pattern) {
    return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}

/// Steps before byte-level BPE, by the name in tokenizer.ggml.pre.
std::optional<Json> preTokenizer(std::string_view name) {
    const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
    const Json plain = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
    const auto sequence = [](Json first, Json second) {
        return Json{{"type", "Sequence"}, {"pretokenizers", Json::array({std::move(first), std::move(second)})}};
    };
    if (name == "gpt-2" || name == "default") return plain;
    if (name == "smollm") return sequence({{"type", "Digits"}, {"individual_digits", true}}, plain);
    if (name == "qwen2")
        return sequence(split("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                              "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"),
                        bytes);
    if (name == "llama-bpe")
        return sequence(split("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                              "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"),
                        bytes);
    return std::nullopt;
}

} // namespace

Tokenizer ggufTokenizer(const GgufFile& file) {
    const auto refuse = [&](const std::string& what) {
        throw Error(ErrorKind::BadInput, fmt::format("{}: {}", file.origin(), what),
                    "the file is damaged, or was written by a converter unknown here");
    };
    const std::string model(file.text("tokenizer.ggml.model").value_or("")),
        pre(file.text("tokenizer.ggml.pre").value_or("default"));
    if (model.empty()) refuse("there is no tokenizer (tokenizer.ggml.model)");
    const auto steps = preTokenizer(pre);
    if (model != "gpt2" || !steps)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("{}: the tokenizer '{}' with the pattern '{}' is not supported", file.origin(),
                                shown(toValidUtf8(model)), shown(toValidUtf8(pre))),
                    "use a byte-level BPE model, or its folder with tokenizer.json");
    const auto tokens = file.texts("tokenizer.ggml.tokens"), merges = file.texts("tokenizer.ggml.merges");
    const auto types = file.integers("tokenizer.ggml.token_type");
    if (tokens.empty()) refuse("the vocabulary (tokenizer.ggml.tokens) is empty or missing");
    if (!types.empty() && types.size() != tokens.size())
        refuse(fmt::format("{} token types for {} tokens", types.size(), tokens.size()));
    Json vocabulary = Json::object(), added = Json::array();
    for (std::size_t id = 0; id < tokens.size(); ++id) {
        const std::string text = toValidUtf8(tokens[id]);
        vocabulary[text] = id;
        const std::int64_t type = types.empty() ? 1 : types[id];
        if (type == kControl || type == kUserDefined)
            added.push_back({{"id", id},
                             {"content", text},
                             {"special", type == kControl},
                             {"single_word", false},
                             {"lstrip", false},
                             {"rstrip", false},
                             {"normalized", false}});
    }
    Json mergeList = Json::array();
    for (const std::string_view merge : merges) mergeList.push_back(toValidUtf8(merge));
    Json spec = {{"added_tokens", std::move(added)},
                 {"normalizer", nullptr},
                 {"pre_tokenizer", *steps},
                 {"decoder", {{"type", "ByteLevel"}}},
                 {"model",
                  {{"type", "BPE"},
                   {"vocab", std::move(vocabulary)},
                   {"merges", std::move(mergeList)},
                   {"ignore_merges", pre == "llama-bpe"}}}};
    const auto bos = file.integer("tokenizer.ggml.bos_token_id");
    if (file.flag("tokenizer.ggml.add_bos_token").value_or(pre == "llama-bpe") && bos) {
        if (*bos < 0 || std::size_t(*bos) >= tokens.size()) refuse("the BOS token is not in the vocabulary");
        spec["post_processor"] = {
            {"type", "TemplateProcessing"},
            {"single",
             Json::array({{{"SpecialToken", {{"id", toValidUtf8(tokens[std::size_t(*bos)])}, {"type_id", 0}}}},
                          {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}})}};
    }
    return Tokenizer(spec.dump(), file.origin());
}

} // namespace kvscope
