#include "core/model/generation_config.h"

#include "core/model/config_reader.h"

#include <algorithm>

namespace kvscope {

void addGenerationConfig(std::string_view text, const std::string& origin, ModelConfig& config) {
    const nlohmann::json json = parseJson(text);
    if (!json.is_object())
        throw Error(ErrorKind::BadInput, origin + ": this is no JSON object", "download the file again, or remove it");
    const ConfigReader reader(json, origin);
    if (!reader.has("eos_token_id")) return;
    const nlohmann::json& stated = json.at("eos_token_id");
    if (config.eosByDefault) config.eosIds.clear(); // a default is nobody's choice
    config.eosByDefault = false;
    for (const nlohmann::json& id : stated.is_array() ? stated : nlohmann::json::array({stated})) {
        if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() > INT32_MAX)
            reader.refuse("'eos_token_id' is no token id");
        const auto token = id.get<std::int32_t>();
        const bool known = std::find(config.eosIds.begin(), config.eosIds.end(), token) != config.eosIds.end();
        if (token < config.vocab && !known) config.eosIds.push_back(token);
    }
}

} // namespace kvscope
