// What the GPU backend cannot run, decided without a GPU: also a build without CUDA can say it.
#pragma once

#include "core/model/model.h"

#include <string>

namespace kvscope {

/// A clause such as "the GPU backend has no feed-forward biases"; empty when the configuration fits.
std::string gpuProblem(const ModelConfig& config);
/// Likewise, with what only the weights tell.
std::string gpuProblem(const Model& model);

} // namespace kvscope
