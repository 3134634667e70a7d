// Progress and cancellation of long actions.
#pragma once

#include "base/error.h"

#include <functional>
#include <stop_token>
#include <string_view>

namespace kvscope {

/// Reports a fraction 0..1 and what is being done; may be empty. Called on the working thread.
using Progress = std::function<void(double fraction, std::string_view what)>;

inline void report(const Progress& progress, double fraction, std::string_view what) {
    if (progress) progress(fraction, what);
}

/// @throws Error(Cancelled) when a stop was requested
inline void throwIfCancelled(const std::stop_token& stop) {
    if (stop.stop_requested()) throw Error(ErrorKind::Cancelled, "cancelled");
}

} // namespace kvscope
