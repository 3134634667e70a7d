// Writes a safetensors file of float32 tensors: what KVScope itself learns about a model.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

struct NamedTensor {
    std::string name;
    std::vector<std::int64_t> shape;
    std::span<const float> values; // as many as the shape says
};

/// Complete or not at all: written beside `path` and renamed. @throws Error(Storage) naming the file
void writeSafetensors(const std::string& path, std::span<const NamedTensor> tensors,
                      const std::map<std::string, std::string>& metadata);

} // namespace kvscope
