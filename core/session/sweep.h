// A sweep: one run for every combination of values of some parameters. What it makes, and what it refuses before the
// first run begins, is the same for `kvscope-cli sweep` and for the desktop.
#pragma once

#include "core/model/model.h"
#include "core/session/decode_session.h"
#include "core/session/session_checks.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

inline constexpr std::size_t kMostSweepPoints = 10'000; // more combinations are refused

/// What is swept: a parameter of methods or one of sweepOptions(), and its values as the command line writes them.
struct SweepAxis {
    std::string key;
    std::vector<std::string> values;
};

/// One run of a sweep.
struct SweepPoint {
    Settings varied; // in the order of the axes, without values that have no effect in this run
    SessionOptions options;
};

struct SweepRequest {
    std::vector<SweepAxis> axes;
    SessionOptions base; // without settings of the method
    Settings settings;   // of every method that has the parameter
    /// Keys of axes whose values are no members of SessionOptions, e.g. how long the prompt is. The caller checks and
    /// applies these values; they change every run.
    std::vector<std::string> ofCaller;
};

/// The options of a run that can be swept beside the parameters of methods.
std::span<const std::string_view> sweepOptions();

/// Reads "16,32,64" as the values of an axis; k is total_blocks and k_q select_blocks.
/// @throws Error(BadInput) for no value and for an empty one
SweepAxis sweepAxis(const std::string& key, const std::string& values);

/// Every combination of the axes' values; those of the last axis change fastest. A value is applied in runs whose
/// method has the parameter, or in which the option has an effect; combinations that become equal in this way are
/// listed once.
/// @throws Error(BadInput) for a value or a key that no run takes, for a key or a value that is named twice, and for
/// more combinations than kMostSweepPoints
std::vector<SweepPoint> sweepPoints(const SweepRequest& request, const ModelConfig& config);

/// Whether the session's blocks pass through a device tier whose size and cache policy the options decide.
/// @throws Error(BadInput | Unsupported) for a setting, and for what the model lacks
bool hasDeviceTier(const Model& model, const SessionOptions& options);

/// Checks what a session checks when it begins, without making its memory.
/// @throws Error(BadInput | Unsupported) with the sentence that the session would fail with
void rehearseSession(const std::shared_ptr<const Model>& model, SessionOptions options, int promptTokens,
                     int sequences);

} // namespace kvscope
