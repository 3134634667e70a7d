// Whether a method's requests can be served, and with which knobs.
#pragma once

#include "base/error.h"
#include "core/plan/backend.h"
#include "core/select/method.h"
#include "core/serve/scheduler_options.h"

#include <optional>
#include <string>

namespace kvscope::serve {

/// Why requests of a method cannot be served on a backend, as a sentence without a full stop; empty: they can.
std::string whyNotServed(const MethodEntry& method, Backend backend = Backend::Cpu);

/// Why these knobs cannot be had where the method is used so, with the mend; nothing: they can.
std::optional<Error> whyNotWithKnobs(const MethodEntry& method, const MethodUse& use, const SchedulerOptions& knobs);

} // namespace kvscope::serve
