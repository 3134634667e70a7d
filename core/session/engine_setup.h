// From the options of a session to the setup of its engine.
#pragma once

#include "core/session/engine.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace kvscope {

/// The method's choice as data, for the model. @throws Error(Unsupported) where it asks for eviction scores that the
/// model does not have
SelectionSpec methodSpec(const MethodEntry& method, const ParameterValues& parameters, const Model& model);

/// Works out layers, slots, cache policy and memory. Fills options.cachePolicy where it is empty. Everything that is
/// passed by reference outlives the engine.
/// @throws Error(BadInput | Unsupported) for what the method, the model or the backend cannot do
EngineSetup engineSetup(const std::shared_ptr<const Model>& model,
                        const std::vector<std::vector<std::int32_t>>& prompts, SessionOptions& options,
                        const MethodEntry& method, const ParameterValues& parameters, const SelectionSpec& spec,
                        RecordLevel level);

} // namespace kvscope
