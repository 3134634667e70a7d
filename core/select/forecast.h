// Choosing by the Forecast (SparDA): a learned projection of one layer's input stands in for the next layer's query, so
// that the next layer's blocks are known, and travel, while this layer attends. SparDA is the method that is nothing
// else; NOSA and InfLLM-V2 choose so with ahead=forecast.
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

/// Chooses on the CPU backend. The model has Forecast heads.
std::unique_ptr<Selector> forecastSelector(const SelectorContext& context);
/// What a method that chooses so can do.
Abilities forecastAbilities(const MethodUse& use);
/// What it takes for a sequence, as MethodEntry::memory.
std::vector<MemoryNeed> forecastMemory(const MethodUse& use, ContextLength length);

} // namespace kvscope::select
