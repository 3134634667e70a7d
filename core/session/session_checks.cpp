#include "core/session/session_checks.h"

#include "base/error.h"

#include <fmt/format.h>

namespace kvscope {

void refuse(const std::string& message, const std::string& hint) { throw Error(ErrorKind::BadInput, message, hint); }

void checkSessionOptions(const SessionOptions& options) {
    if (options.maxNewTokens < 1)
        refuse(fmt::format("cannot generate {} tokens", options.maxNewTokens), "ask for at least 1 new token");
    const Sampling& s = options.sampling;
    if (!(s.temperature >= 0 && s.temperature <= 100))
        refuse(fmt::format("temperature {} is out of range", s.temperature), "use 0 (greedy) to 100");
    if (!(s.topP > 0 && s.topP <= 1))
        refuse(fmt::format("top-p {} is out of range", s.topP), "use a number above 0, at most 1");
    if (s.topK < 0) refuse(fmt::format("top-k {} is negative", s.topK), "use 0 for all tokens, or a positive number");
    if (options.threads < 0 || options.threads > 1024)
        refuse(fmt::format("cannot run on {} threads", options.threads), "use 0 for all cores, or 1 to 1024");
}

void checkPrompts(std::span<const std::vector<std::int32_t>> prompts, const Model& model, int newTokens, int added) {
    const ModelConfig& config = model.config();
    if (prompts.empty()) refuse("there is no prompt", "give at least one");
    if (prompts.size() > 256) refuse(fmt::format("{} sequences are too many", prompts.size()), "use at most 256");
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        if (prompts[i].empty()) refuse(fmt::format("prompt {} is empty", i), "give it at least one token");
        if (std::int64_t(prompts[i].size()) + added > config.maxPositions)
            refuse(fmt::format("a prompt of {} tokens and {} new ones exceed the context of {} ({} tokens)",
                               prompts[i].size(), newTokens, model.name(), config.maxPositions),
                   "shorten the prompt or ask for fewer new tokens");
        for (const std::int32_t id : prompts[i])
            if (id < 0 || id >= config.vocab)
                refuse(fmt::format("prompt {} holds token id {}, outside the vocabulary of {} ({} entries)", i, id,
                                   model.name(), config.vocab),
                       "use ids of this model's tokenizer");
    }
}

void checkGiven(std::span<const std::vector<std::int32_t>> given, std::size_t sequences, int vocab, int newTokens) {
    if (given.empty()) return;
    if (given.size() != sequences)
        refuse(fmt::format("tokens are given for {} sequences, and there are {}", given.size(), sequences),
               "give a list for every sequence");
    for (std::size_t i = 0; i < given.size(); ++i) {
        if (given[i].size() > std::size_t(newTokens))
            refuse(fmt::format("{} tokens are given for sequence {}, which is to have {} new ones", given[i].size(), i,
                               newTokens),
                   fmt::format("ask for more than {} new tokens", given[i].size()));
        for (const std::int32_t id : given[i])
            if (id < 0 || id >= vocab)
                refuse(fmt::format("token id {} is given for sequence {}, outside the vocabulary of {} entries", id, i,
                                   vocab),
                       "use ids of this model's tokenizer");
    }
}

ParameterValues methodParameters(const MethodEntry& method, const Model& model, const Settings& settings) {
    if (!hasWeightsFor(method, model))
        throw Error(ErrorKind::Unsupported,
                    fmt::format("method {} needs {}, and {} has none", method.name, method.needs, model.name()),
                    "choose another method or a checkpoint trained for it");
    const ModelConfig& config = model.config();
    ParameterValues parameters = resolveDefaults(method, config);
    for (const auto& [key, value] : settings) {
        try {
            parameters.set(parametersFor(method, config), key, value);
        } catch (Error& error) {
            error.during("method " + method.name);
            throw;
        }
    }
    if (const auto lack = findLack(method, parameters, model)) throw *lack;
    return parameters;
}

} // namespace kvscope
