#include "core/model/generation_config.h"

#include "core/model/config_reader.h"

#include <algorithm>
#include <fmt/format.h>
#include <initializer_list>

namespace kvscope {
namespace {

/// A key with which the library's generate() changes the choice of every token, also of the most probable one, and the
/// values with which it changes nothing.
struct Change {
    const char* key;
    std::initializer_list<double> neutral;
};
constexpr Change kChanges[] = {{"repetition_penalty", {1}},
                               {"encoder_repetition_penalty", {1}},
                               {"no_repeat_ngram_size", {0}},
                               {"encoder_no_repeat_ngram_size", {0}},
                               {"bad_words_ids", {}},
                               {"min_length", {0}},
                               {"min_new_tokens", {0}},
                               {"forced_bos_token_id", {}},
                               {"forced_eos_token_id", {}},
                               {"suppress_tokens", {}},
                               {"begin_suppress_tokens", {}},
                               {"sequence_bias", {}},
                               {"exponential_decay_length_penalty", {}},
                               {"guidance_scale", {1}},
                               {"watermarking_config", {}},
                               {"stop_strings", {}},
                               {"num_beams", {1}},
                               {"penalty_alpha", {0}},
                               {"token_healing", {}}};

bool isNeutral(const nlohmann::json& value, const Change& change) {
    if (value.is_null() || value == false) return true;
    if ((value.is_array() || value.is_object()) && value.empty()) return true;
    return value.is_number() && std::ranges::find(change.neutral, value.get<double>()) != change.neutral.end();
}

void noteWhatChangesTokens(const nlohmann::json& json, ModelConfig& config) {
    std::vector<std::string> unheeded;
    for (const Change& change : kChanges)
        if (const auto found = json.find(change.key); found != json.end() && !isNeutral(*found, change))
            unheeded.emplace_back(change.key);
    if (!unheeded.empty())
        config.notes.push_back(
            fmt::format("generation_config.json has keys by which transformers chooses other tokens, and which this "
                        "program does not heed: {}",
                        listedKeys(unheeded)));
}

} // namespace

void addGenerationConfig(std::string_view text, const std::string& origin, ModelConfig& config) {
    const nlohmann::json json = parseJson(text);
    if (!json.is_object())
        throw Error(ErrorKind::BadInput, origin + ": this is not a JSON object",
                    "download the file again, or remove it");
    noteWhatChangesTokens(json, config);
    const ConfigReader reader(json, origin);
    if (!reader.has("eos_token_id")) return;
    const nlohmann::json& stated = json.at("eos_token_id");
    if (config.eosByDefault) config.eosIds.clear(); // what the file states replaces the family's default
    config.eosByDefault = false;
    for (const nlohmann::json& id : stated.is_array() ? stated : nlohmann::json::array({stated})) {
        if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() > INT32_MAX)
            reader.refuse("'eos_token_id' is not a token id");
        const auto token = id.get<std::int32_t>();
        const bool known = std::find(config.eosIds.begin(), config.eosIds.end(), token) != config.eosIds.end();
        if (token < config.vocab && !known) config.eosIds.push_back(token);
    }
}

} // namespace kvscope
