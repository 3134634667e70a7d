// What an engine that serves refuses, and the sentences with which it does: settings that it cannot serve with, budgets
// that this machine does not have or that hold no request, and requests that can never run.
#pragma once

#include "base/error.h"
#include "core/serve/engine.h"

#include <cstdint>
#include <optional>

namespace kvscope::serve {

/// @throws Error(Unsupported) where the method or the model cannot serve on the backend, where it has no pool of slots
/// and `pooled` asks for one, or with these knobs. use: of the method, with its model
void checkServable(const EngineOptions& options, const MethodEntry& method, const MethodUse& use, bool pooled);

/// pieceTokens: the engine cuts prompts at multiples of so many tokens. @throws Error(BadInput) where chunks would end
/// elsewhere
void checkChunks(const SchedulerOptions& knobs, int pieceTokens);

/// deviceRoom: bytes that are free on the GPU beside the model; nothing: on the CPU, where all budgets are ordinary
/// memory. @throws Error(OutOfMemory) for budgets that the machine does not have
void checkBudgets(const Budget& budget, std::optional<std::int64_t> deviceRoom);

/// refusal: Scheduler::neverFits of a prompt of one token with one new token. @throws Error(OutOfMemory) where the
/// budgets do not hold even this request
void checkSmallestRequest(const Refusal& refusal);

/// The sentence that the client of a refused request gets.
Error whyRefused(const Refusal& refusal, const ServeRequest& request);

} // namespace kvscope::serve
