#include "app/cli/prompt_options.h"

#include "app/terminal/options.h"
#include "base/text_file.h"
#include "core/prompt/chat_prompt.h"
#include "core/prompt/prompts.h"
#include "core/trace/run_meta.h"
#include "profiler/read/trace_reader.h"

#include <charconv>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope::cli {
namespace {

constexpr int kLongestPrompt = 1 << 24; // tokens

/// [1, 2, 3] for one sequence or [[1, 2], [3]] for several.
std::vector<std::vector<std::int32_t>> readIds(const std::string& path) {
    const auto wrong = [&](const std::string& why) {
        return Error(ErrorKind::BadInput, fmt::format("{}: {}", path, why),
                     "write [1, 2, 3], or [[1, 2], [3]] for a batch");
    };
    const auto document = nlohmann::json::parse(readPromptFile(path), nullptr, false);
    if (document.is_discarded()) throw wrong("this is not JSON");
    const auto sequence = [&](const nlohmann::json& list) {
        std::vector<std::int32_t> ids;
        for (const auto& id : list) {
            if (!id.is_number_integer() || id < 0 || id > INT32_MAX) throw wrong("a token id is not a whole number");
            ids.push_back(id.get<std::int32_t>());
        }
        return ids;
    };
    if (!document.is_array() || document.empty()) throw wrong("there are no token ids");
    std::vector<std::vector<std::int32_t>> prompts;
    if (!document.front().is_array()) return {sequence(document)};
    for (const auto& list : document) {
        if (!list.is_array()) throw wrong("lists and numbers are mixed");
        prompts.push_back(sequence(list));
    }
    return prompts;
}

/// The prompts of a recorded run. subject: a trace, and after a colon which of its runs; without one its first.
std::vector<std::vector<std::int32_t>> recordedPrompts(const std::string& subject, std::vector<NeedlePlace>& needles) {
    auto [path, runId] = splitRun(subject);
    const TraceReader reader(path);
    const std::vector<RunRow> runs = reader.runs();
    if (runId == 0 && !runs.empty()) runId = runs.front().runId;
    const auto run = reader.run(runId);
    if (!run)
        throw Error(ErrorKind::BadInput, fmt::format("{} has no run {}", path, runId),
                    "kvscope-cli info lists its runs");
    std::vector<std::vector<std::int32_t>> prompts;
    for (int sequence = 0; sequence < run->sequences; ++sequence) {
        auto& ids = prompts.emplace_back();
        for (const TokenRow& token : reader.prompt(runId, sequence)) ids.push_back(token.id);
        if (ids.empty())
            throw Error(ErrorKind::BadInput,
                        fmt::format("run {} of {} does not hold the prompt of sequence {}", runId, path, sequence),
                        "give the prompt with --prompt, --prompt-file or --prompt-ids");
    }
    needles = parseNeedles(run->metaOr(run_meta::kNeedles));
    return prompts;
}

} // namespace

std::string readPromptFile(const std::string& path) { return readTextFile(path, "the text"); }

void addPromptOptions(Options& command, PromptArguments& arguments) {
    command.addWords("--prompt", arguments.texts, "Prompt text; repeatable for a batch");
    command.add("--prompt-file", arguments.files, "Text file with a prompt; repeatable for a batch");
    command.add("--prompt-ids", arguments.idsFile, "JSON file with token ids, used as they are");
    command.add("--prompt-trace", arguments.trace, "The prompts of a recorded run, token by token: TRACE, or TRACE:RUN")
        .valueName("TRACE[:RUN]");
    const Option needle =
        command
            .add("--prompt-needle", arguments.needleTokens, "Built-in needle-in-a-haystack prompt of this many tokens")
            .range(1, kLongestPrompt);
    command.add("--needles", arguments.needles, "Facts hidden in the needle prompt")
        .needs(needle)
        .range(1, 64)
        .showsDefault();
    command.add("--needle-depth", arguments.needleDepth, "Place of the fact asked for: 0 start, 1 end")
        .needs(needle)
        .range(0.0, 1.0)
        .showsDefault();
    command.add("--prompt-document", arguments.documentTokens, "Built-in document cut to this many tokens")
        .range(1, kLongestPrompt);
    command.flag("--chat", arguments.chat, "Put each text into the model's chat template");
    command.addWords("--system", arguments.system, "System message for the chat template");
    command.add("--prompt-seed", arguments.promptSeed, "Seed of the needle prompt").needs(needle).showsDefault();
}

std::pair<std::string, int> splitRun(const std::string& subject) {
    const std::size_t colon = subject.rfind(':');
    if (colon == std::string::npos || colon + 1 == subject.size()) return {subject, 0};
    int runId = 0;
    const char* const end = subject.data() + subject.size();
    const auto [stop, code] = std::from_chars(subject.data() + colon + 1, end, runId);
    const bool isNumber = code == std::errc() && stop == end;
    return isNumber ? std::pair(subject.substr(0, colon), runId) : std::pair(subject, 0);
}

std::vector<std::vector<std::int32_t>> readPrompts(const PromptArguments& arguments, const Model& model, int batch,
                                                   std::vector<NeedlePlace>* needles) {
    const int kinds = int(!arguments.texts.empty()) + int(!arguments.files.empty()) + int(!arguments.idsFile.empty()) +
                      int(!arguments.trace.empty()) + int(arguments.needleTokens != 0) +
                      int(arguments.documentTokens != 0);
    if (kinds != 1)
        throw Error(
            ErrorKind::BadInput, kinds == 0 ? "there is no prompt" : "there is more than one kind of prompt",
            "give one of --prompt, --prompt-file, --prompt-ids, --prompt-trace, --prompt-needle, --prompt-document");
    if (batch < 0 || batch > 256)
        throw Error(ErrorKind::BadInput, fmt::format("batch {} is out of range", batch), "use 1 to 256");
    const Tokenizer& tokenizer = model.tokenizer();
    std::vector<std::vector<std::int32_t>> prompts;
    std::vector<NeedlePlace> places;
    if (arguments.chat && !(arguments.idsFile.empty() && arguments.trace.empty()))
        throw Error(ErrorKind::BadInput,
                    fmt::format("--chat works on texts, not on {}",
                                arguments.trace.empty() ? "--prompt-ids" : "--prompt-trace"),
                    "leave one out");
    if (!arguments.chat && !arguments.system.empty())
        throw Error(ErrorKind::BadInput, "--system needs a chat template", "add --chat");
    const auto add = [&](const std::string& text) {
        prompts.push_back(arguments.chat ? encodeChatPrompt(tokenizer, chatPrompt(model.text(), model.name(),
                                                                                  {text, arguments.system}))
                                         : tokenizer.encode(text));
    };
    for (const std::string& text : arguments.texts) add(text);
    for (const std::string& path : arguments.files) add(readPromptFile(path));
    if (!arguments.idsFile.empty()) prompts = readIds(arguments.idsFile);
    if (!arguments.trace.empty()) prompts = recordedPrompts(arguments.trace, places);
    if (arguments.documentTokens) add(longDocumentPrompt(tokenizer, arguments.documentTokens));
    if (arguments.needleTokens)
        for (int i = 0; i < std::max(batch, 1); ++i) {
            NeedleOptions options;
            options.tokens = arguments.needleTokens;
            options.needles = arguments.needles;
            options.depth = arguments.needleDepth;
            options.seed = arguments.promptSeed + std::uint64_t(i);
            const NeedlePrompt prompt = makeNeedlePrompt(tokenizer, options);
            add(prompt.text);
            for (NeedlePlace& place : placesOf(tokenizer, prompts.back(), prompt, i))
                places.push_back(std::move(place));
        }
    const std::size_t given = prompts.size();
    if (batch > 0 && std::size_t(batch) < given)
        throw Error(ErrorKind::BadInput, fmt::format("{} prompts do not fit a batch of {}", given, batch),
                    "raise --batch or leave it out");
    for (std::size_t i = given; i < std::size_t(batch); ++i) {
        const std::size_t known = places.size(); // what is repeated has its needles in the same places
        for (std::size_t n = 0; n < known; ++n)
            if (std::size_t(places[n].sequence) == i % given) {
                places.push_back(places[n]);
                places.back().sequence = int(i);
            }
        prompts.push_back(prompts[i % given]);
    }
    if (needles != nullptr) *needles = std::move(places);
    return prompts;
}

} // namespace kvscope::cli
