// Whether a method's requests can be served.
#pragma once

#include "core/plan/backend.h"
#include "core/select/method.h"

#include <string>

namespace kvscope::serve {

/// Why requests of a method cannot be served on a backend, as a sentence without a full stop; empty: they can.
std::string whyNotServed(const MethodEntry& method, Backend backend = Backend::Cpu);

} // namespace kvscope::serve
