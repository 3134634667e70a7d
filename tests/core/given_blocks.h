// The CPU engine made to attend to blocks that another session chose: what is left between the two is arithmetic.
#pragma once

#include "core/model/model.h"
#include "core/trace/trace_sink.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvscope::test {

/// Logits [steps][vocab] of one sequence that is fed `tokens`, one a step, and attends at each step to the blocks of
/// `steps` (records at level Full, decode steps only). `method` gives the bias and what else is not a choice.
std::vector<std::vector<float>> logitsWithBlocksOf(std::span<const StepRecord> steps,
                                                   const std::shared_ptr<const Model>& model, const std::string& method,
                                                   const std::vector<std::int32_t>& prompt,
                                                   std::span<const std::int32_t> tokens);

} // namespace kvscope::test
