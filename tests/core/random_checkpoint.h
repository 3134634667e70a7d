// Checkpoints of any family and size with random weights, for comparing backends: the names and shapes are those that
// the readers of core/model ask for.
#pragma once

#include "core/model/model.h"

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvscope::test {

struct RandomTensor {
    std::string name;
    std::vector<std::int64_t> shape;
    std::vector<float> values;
};

/// The tensors of a checkpoint with this config.json, without optional ones: matrices of deviation 1/sqrt(columns),
/// norms near 1. Values are bf16 numbers, so that both backends compute with the same weights.
std::vector<RandomTensor> randomTensors(const nlohmann::json& config, unsigned seed);

/// The config.json of a golden family, with `changes` over it.
nlohmann::json familyConfig(const std::string& family, const nlohmann::json& changes);

/// Writes the folder of a checkpoint. @return it
std::string writeCheckpoint(const std::string& folder, const nlohmann::json& config, unsigned seed);

} // namespace kvscope::test
