// What the form of a server can be set to at once.
#pragma once

#include "ui/session/server_process.h"

#include <QString>

#include <cstdint>

namespace kvscope::ui {

enum class ServePreset : std::uint8_t { Defaults, SparseServe, Own };

/// What a preset sets; everything else of the method and of the scheduler has its default.
struct PresetValues {
    QString method;
    ServerRequest::Settings settings, knobs;
    QString note; // for the user; empty: there is nothing to say
};
/// The values of Defaults or SparseServe (docs/serving.md).
PresetValues presetValues(ServePreset preset);

} // namespace kvscope::ui
