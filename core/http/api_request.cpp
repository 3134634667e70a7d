#include "core/http/api_request.h"

#include "base/json_reading.h"
#include "core/http/api_body.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope::http {
namespace {

using nlohmann::json;

constexpr std::size_t kStops = 4, kLongestStop = 256;
constexpr int kMostTokens = 1 << 24;

double numberOf(const json& body, const char* name, double lowest, double highest, double absent) {
    const json& value = member(body, name);
    if (value.is_null()) return absent;
    const double number = value.is_number() ? value.get<double>() : std::nan("");
    if (!(number >= lowest && number <= highest))
        refuseBody(fmt::format("{} must be a number from {} to {}", name, lowest, highest), name);
    return number;
}

/// The value of a whole number, which may be written as 1.0 as long as that says exactly which number is meant.
std::optional<std::int64_t> integerOf(const json& body, const char* name, std::int64_t lowest, std::int64_t highest) {
    const json& value = member(body, name);
    if (value.is_null()) return std::nullopt;
    const double number = value.is_number() ? value.get<double>() : std::nan("");
    if (!(number >= double(lowest) && number <= double(highest)) || number != std::floor(number) ||
        (value.is_number_float() && std::abs(number) > 0x1p53) ||
        (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t(INT64_MAX)))
        refuseBody(fmt::format("{} must be a whole number from {} to {}", name, lowest, highest), name);
    const std::int64_t whole = value.is_number_integer() ? value.get<std::int64_t>() : std::int64_t(number);
    if (whole < lowest || whole > highest)
        refuseBody(fmt::format("{} must be a whole number from {} to {}", name, lowest, highest), name);
    return whole;
}

// Names that would change the answer are refused, unless they have the value with which they change nothing: here are
// the kinds of such values.
enum class Neutral : std::uint8_t { Zero, One, True, Text, NoChoice, TextFormat, Null };
struct Refused {
    const char* name;
    Neutral neutral = Neutral::Zero;
};
constexpr Refused kRefused[] = {
    {"repetition_penalty", Neutral::One},
    {"presence_penalty"},
    {"frequency_penalty"},
    {"top_logprobs"},
    {"prompt_logprobs"},
    {"echo"},
    {"logit_bias"},
    {"tools"},
    {"tool_choice", Neutral::NoChoice},
    {"functions"},
    {"function_call", Neutral::NoChoice},
    {"response_format", Neutral::TextFormat},
    {"structured_outputs"},
    {"grammar"},
    {"json_schema"},
    {"min_p"},
    {"typical_p", Neutral::One},
    {"mirostat"},
    {"bad_words"},
    {"truncate_prompt_tokens"},
    {"use_beam_search"},
    {"n", Neutral::One},
    {"best_of", Neutral::One},
    {"suffix"},
    {"chat_template"},
    {"chat_template_kwargs"},
    {"documents"},
    {"modalities", Neutral::Text},
    {"audio"},
    {"reasoning_effort"},
    {"web_search_options", Neutral::Null}, // an empty object asks for a search
    {"moderation", Neutral::Null},
    {"min_tokens"},
    {"stop_token_ids"},
    // Of vLLM, SGLang, llama.cpp and text-generation-webui, which send them beside OpenAI's.
    {"allowed_token_ids"},
    {"logits_processors"},
    {"include_stop_str_in_output"},
    {"no_stop_trim"},
    {"skip_special_tokens", Neutral::True},
    {"detokenize", Neutral::True},
    {"return_token_ids"},
    {"return_indexer_topk"},
    {"n_probs"},
    {"prompt_embeds"},
    {"lora"},
    {"lora_path"},
    {"lora_request"},
    {"regex"},
    {"ebnf"},
    {"structural_tag"},
    {"stop_regex"},
    {"n_predict"},
    {"max_new_tokens"},
    {"min_new_tokens"},
    {"max_length"},
    {"do_sample", Neutral::True},
    {"num_beams", Neutral::One},
    {"no_repeat_ngram_size"},
    {"encoder_repetition_penalty", Neutral::One},
    {"top_a"},
    {"tfs_z", Neutral::One},
    {"tfs", Neutral::One},
    {"epsilon_cutoff"},
    {"eta_cutoff"},
    {"smoothing_factor"},
    {"dynatemp_range"},
    {"continue_final_message"},
    {"add_generation_prompt", Neutral::True},
    {"verbosity"},
};

/// Families of names that are refused in the same way, each member by itself.
constexpr std::string_view kRefusedFamilies[] = {"guided_", "dry_", "xtc_"};

bool isNeutral(const json& value, Neutral neutral) {
    if (value.is_null()) return true;
    switch (neutral) {
    case Neutral::One:
        return value.is_number() && value.get<double>() == 1;
    case Neutral::True:
        return value == true;
    case Neutral::Text:
        return value.is_array() && (value.empty() || value == json::array({"text"}));
    case Neutral::NoChoice:
        return value == "none" || value == "auto";
    case Neutral::TextFormat:
        return value.is_object() && (value.empty() || value == json{{"type", "text"}});
    case Neutral::Null:
        return false;
    case Neutral::Zero:
        break;
    }
    return saysNothing(value);
}

/// Names that are read, and names that change nothing.
constexpr const char* kKnown[] = {
    "model", "prompt",   "messages", "max_tokens", "max_completion_tokens", "temperature",       "top_p",
    "top_k", "seed",     "stop",     "stream",     "stream_options",        "ignore_eos",        "logprobs",
    "user",  "priority", "store",    "metadata",   "service_tier",          "safety_identifier", "add_special_tokens",
};

void refuseWhatChangesTheAnswer(ApiRequest& request, const json& body) {
    for (const auto& [name, value] : body.items()) {
        const auto* refused =
            std::find_if(std::begin(kRefused), std::end(kRefused), [&](const Refused& r) { return name == r.name; });
        const bool known = refused != std::end(kRefused);
        const bool ofFamily = std::any_of(std::begin(kRefusedFamilies), std::end(kRefusedFamilies),
                                          [&](std::string_view family) { return name.starts_with(family); });
        if (known || ofFamily) {
            if (!isNeutral(value, known ? refused->neutral : Neutral::Zero))
                refuseBody(fmt::format("{} is not supported with this value: it would change the answer", shown(name)),
                           shown(name));
        } else if (std::none_of(std::begin(kKnown), std::end(kKnown), [&](const char* k) { return name == k; })) {
            ++request.ignored;
        }
    }
    // A completion's prompt gets the tokens that the model's tokenizer puts around a text, a chat's template has its
    // own.
    const json& special = member(body, "add_special_tokens");
    if (!special.is_null() && special != (request.kind == ApiKind::Completion))
        refuseBody("add_special_tokens is not supported with this value: it would change the answer",
                   "add_special_tokens");
    // A completion's logprobs is a number, and 0 asks for the probability of the token that was chosen.
    const json& logprobs = member(body, "logprobs");
    if (!logprobs.is_null() && !(request.kind == ApiKind::Chat && logprobs == false) &&
        !(request.kind == ApiKind::Completion && logprobs == false))
        refuseBody("logprobs is not supported", "logprobs");
}

void readPrompt(ApiRequest& request, const json& body) {
    const json& prompt = member(body, "prompt");
    const json& one = prompt.is_array() && prompt.size() == 1 && !prompt.front().is_number() ? prompt.front() : prompt;
    if (one.is_string()) {
        request.prompt = one.get<std::string>();
        if (request.prompt.empty()) refuseBody("prompt must not be empty", "prompt");
        return;
    }
    if (!one.is_array() || one.empty())
        refuseBody("prompt must be a text or a list of token ids, and must not be empty", "prompt");
    if (!one.front().is_number()) refuseBody("prompt must be a single prompt: send one request for each", "prompt");
    request.ids = idsOf(one, "prompt");
}

void readStop(ApiRequest& request, const json& body) {
    const json& stop = member(body, "stop");
    if (stop.is_null()) return;
    const json list = stop.is_array() ? stop : json::array({stop});
    if (list.size() > kStops) refuseBody(fmt::format("stop has more than {} texts", kStops), "stop");
    for (const json& text : list) {
        if (!text.is_string()) refuseBody("stop must be a text or a list of texts", "stop");
        request.stop.push_back(text.get<std::string>());
        if (request.stop.back().empty()) refuseBody("stop has an empty text", "stop");
        if (request.stop.back().size() > kLongestStop)
            refuseBody(fmt::format("stop has a text of more than {} bytes", kLongestStop), "stop");
    }
}

} // namespace

ApiRequest readApiRequest(ApiKind kind, std::string_view text) {
    const json body = parseBody(text);
    ApiRequest request;
    request.kind = kind;
    refuseWhatChangesTheAnswer(request, body);
    request.model = textOf(body, "model");
    (void)textOf(body, "user");
    if (kind == ApiKind::Chat)
        request.messages = messagesOf(body);
    else
        readPrompt(request, body);
    const auto tokens = integerOf(body, "max_tokens", 1, kMostTokens);
    const auto completion = integerOf(body, "max_completion_tokens", 1, kMostTokens);
    if (tokens && completion && *tokens != *completion)
        refuseBody("max_tokens and max_completion_tokens differ", "max_completion_tokens");
    if (tokens || completion) request.maxTokens = int(tokens ? *tokens : *completion);
    request.temperature = numberOf(body, "temperature", 0, 2, 1);
    request.topP = numberOf(body, "top_p", 0, 1, 1);
    if (request.topP <= 0) refuseBody("top_p must be larger than 0", "top_p");
    request.topK = int(std::max<std::int64_t>(0, integerOf(body, "top_k", -1, kMostTokens).value_or(0)));
    if (const auto seed = integerOf(body, "seed", INT64_MIN, INT64_MAX)) request.seed = std::uint64_t(*seed);
    (void)integerOf(body, "priority", INT32_MIN, INT32_MAX);
    readStop(request, body);
    request.stream = flagOf(body, "stream");
    request.ignoreEos = flagOf(body, "ignore_eos");
    const json& options = member(body, "stream_options");
    if (!options.is_null() && !options.is_object()) refuseBody("stream_options must be an object", "stream_options");
    request.includeUsage = flagOf(options, "include_usage");
    request.usageInParts = flagOf(options, "continuous_usage_stats") && request.includeUsage;
    const json& metadata = member(body, "metadata");
    if (!metadata.is_null() && !metadata.is_object()) refuseBody("metadata must be an object", "metadata");
    if (member(metadata, "class").is_string()) request.requestClass = member(metadata, "class").get<std::string>();
    return request;
}

} // namespace kvscope::http
