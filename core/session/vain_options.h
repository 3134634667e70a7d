// Options and settings that change nothing in a run. The command line refuses them, and the command that repeats a run
// leaves them out.
#pragma once

#include "base/error.h"
#include "core/plan/backend.h"
#include "core/select/method.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace kvscope {

/// What decides which options of a run have an effect.
struct RunChoices {
    const MethodEntry& method;
    Backend backend = Backend::Cpu;
    bool offload = true;
    bool sizesDeviceTier = false; // the session's options give the number of block slots
    double temperature = 0;
    bool denoises = false; // the model denoises, and without sizesDeviceTier a prefix stays on the device
};

/// Why an option of `run` changes nothing and what to do, one sentence each; nothing where it has an effect.
/// @param option as the command line writes it, e.g. "--link"
std::optional<Error> vainOption(std::string_view option, const RunChoices& run);

/// Why a setting of the method's parameter `key` changes nothing. Nothing for keys that the method does not have.
/// @param key e.g. "cached_blocks"
std::optional<Error> vainSetting(std::string_view key, const RunChoices& run);

/// @throws Error(BadInput) for the first setting (key, value) that changes nothing
void refuseVainSettings(std::span<const std::pair<std::string, std::string>> settings, const RunChoices& run);

} // namespace kvscope
