// Which models the GPU backend cannot run. Decided without a GPU, so that a build without CUDA knows too.
#pragma once

#include "core/model/model.h"

#include <string>

namespace kvscope {

/// A clause such as "the GPU backend has no feed-forward biases"; empty when the configuration fits.
std::string gpuProblem(const ModelConfig& config);
/// Why the GPU backend cannot run the model, by its configuration and its weights; empty: it can.
std::string gpuProblem(const Model& model);

} // namespace kvscope
