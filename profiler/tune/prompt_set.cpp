#include "profiler/tune/prompt_set.h"

#include "base/error.h"
#include "base/json_reading.h"
#include "base/text_file.h"
#include "core/prompt/prompts.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fmt/format.h>
#include <sstream>

namespace kvscope {
namespace {

PromptSet needles(const Model& model, const PromptSetSize& size) {
    constexpr std::array depths{0.1, 0.3, 0.5, 0.7, 0.9}; // as EvalOptions has them
    PromptSet set{"needles", {}};
    for (int i = 0; i < size.prompts; ++i) {
        NeedleOptions needle;
        needle.tokens = size.tokens;
        needle.depth = depths[std::size_t(i) * depths.size() / std::size_t(size.prompts)];
        needle.seed = size.seed + std::uint64_t(i);
        const NeedlePrompt prompt = makeNeedlePrompt(model.tokenizer(), needle);
        set.prompts.push_back({model.tokenizer().encode(prompt.text), prompt.answer});
    }
    return set;
}

PromptSet document(const Model& model, const PromptSetSize& size) {
    PromptSet set{"document", {}};
    const SplicedPrompts prompts(model);
    for (int i = 0; i < size.prompts; ++i) set.prompts.push_back({prompts.prompt(size.tokens, i, size.seed), {}});
    return set;
}

Error badLine(const std::string& path, int line, const std::string& what) {
    return {ErrorKind::BadInput, fmt::format("line {} of {} {}", line, path, what),
            "write one JSON object a line: {\"prompt\": \"...\", \"answer\": \"...\"}"};
}

TunePrompt promptOf(const Tokenizer& tokenizer, const std::string& path, int number, const std::string& line) {
    const nlohmann::json object = parseJson(line);
    if (!object.is_object()) throw badLine(path, number, "is not a JSON object");
    for (const auto& [key, value] : object.items()) {
        if (key != "prompt" && key != "answer")
            throw badLine(path, number, fmt::format("has '{}', which is neither prompt nor answer", shown(key)));
        if (!value.is_string() || value.get<std::string>().empty())
            throw badLine(path, number, fmt::format("has a '{}' that is not a text", key));
    }
    if (!object.contains("prompt")) throw badLine(path, number, "has no 'prompt'");
    return {tokenizer.encode(object.at("prompt").get<std::string>()), object.value("answer", std::string())};
}

PromptSet fromFile(const Model& model, const std::string& path, const std::stop_token& stop) {
    std::error_code none;
    if (!std::filesystem::exists(path, none))
        throw Error(ErrorKind::BadInput, fmt::format("there is no prompt set '{}'", path),
                    "use needles, document, or a file of JSON lines with prompt and answer");
    std::istringstream file(readTextFile(path, "the prompt set", kLongestText, stop));
    PromptSet set{path, {}};
    int number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        set.prompts.push_back(promptOf(model.tokenizer(), path, number, line));
        if (set.prompts.back().answer.empty() != set.prompts.front().answer.empty())
            throw badLine(path, number, "and its first line are not alike: only one of them has an answer");
    }
    if (set.prompts.empty())
        throw Error(ErrorKind::BadInput, fmt::format("{} holds no prompt", path), "give it at least one line");
    return set;
}

} // namespace

bool PromptSet::hasAnswers() const {
    return std::all_of(prompts.begin(), prompts.end(), [](const TunePrompt& p) { return !p.answer.empty(); });
}

int PromptSet::longest() const {
    std::size_t most = 0;
    for (const TunePrompt& prompt : prompts) most = std::max(most, prompt.ids.size());
    return int(most);
}

PromptSet promptSet(const Model& model, const std::string& name, const PromptSetSize& size,
                    const std::stop_token& stop) {
    if (name == "needles") return needles(model, size);
    if (name == "document") return document(model, size);
    return fromFile(model, name, stop);
}

bool answers(const std::string& generated, const std::string& answer) {
    const std::size_t first = generated.find_first_not_of(" \t\n");
    return first != std::string::npos && generated.compare(first, answer.size(), answer) == 0;
}

} // namespace kvscope
