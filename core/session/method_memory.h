// What methods with a Selector of their own remember of a context, before a session exists: a row per method in
// method_memory.cpp. Scratch of a step or of one prompt is left out, as it is for the methods that are data.
#pragma once

#include "core/model/model_config.h"
#include "core/select/method.h"

#include <cstdint>

namespace kvscope {

struct MethodMemory {
    std::int64_t indexBytes = 0; // on the device tier: digests, labels, partial keys, scores of tokens
    /// The method takes the place of both tiers (SelectionSpec::ownDeviceTier). On a GPU these are the keys and values
    /// of the layers it chooses in; on the CPU it reads the common store, and they are nothing.
    bool ownTiers = false;
    std::int64_t deviceKvBytes = 0, hostKvBytes = 0;
    int blockSlots = 0; // blocks of a KV head's tokens on the device
};

/// Nothing for a method that is its spec. All sequences have `tokens`, nearly all of them prompt.
MethodMemory methodMemory(const MethodEntry& method, const ParameterValues& values, const SelectionSpec& spec,
                          const ModelConfig& config, int tokens, int sequences, bool gpu);

/// Tokens that a KV head attends to at most in a step; 0: all.
int mostAttended(const MethodEntry& method, const ParameterValues& values, const SelectionSpec& spec, int promptTokens,
                 int newTokens);

/// Whether the method's kernels on the GPU, where it has some, take a model of this form and so many tokens of it.
bool gpuTakes(const MethodEntry& method, const ModelConfig& config, int tokens);

} // namespace kvscope
