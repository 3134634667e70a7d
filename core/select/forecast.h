// Choosing by the Forecast (SparDA): a learned projection of one layer's input takes the place of the next layer's
// query, so that the next layer's blocks are known, and travel, while this layer attends. SparDA always chooses so;
// NOSA and InfLLM-V2 do with ahead=forecast.
#pragma once

#include "core/select/method.h"
#include "core/select/selector.h"

#include <memory>
#include <vector>

namespace kvscope::select {

/// What a checkpoint must have for the Forecast, in words.
inline constexpr const char* kForecastHeads = "Forecast heads (self_attn.q_future_proj.weight)";

/// "ahead", none or forecast: whether a layer chooses by its own query or by the Forecast of the layer before.
Parameter ahead();
/// What a method that has the parameter ahead() declares as MethodEntry::forecast.
ForecastSetting aheadByForecast();
/// Whether these parameters have "ahead" and choose by the Forecast.
bool choosesByForecast(const ParameterValues& values);

/// Makes the selector that chooses by the Forecast on the CPU backend. The model has Forecast heads.
std::unique_ptr<Selector> forecastSelector(const SelectorContext& context);
/// The abilities of a method that chooses by the Forecast.
Abilities forecastAbilities(const MethodUse& use);
/// The memory that a method takes for a sequence to choose by the Forecast, as MethodEntry::memory.
std::vector<MemoryNeed> forecastMemory(const MethodUse& use, ContextLength length);

} // namespace kvscope::select
