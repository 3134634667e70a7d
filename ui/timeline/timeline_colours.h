// The colour of a span by its name: stages as in the breakdown, kernels as the stage they were launched for.
#pragma once

#include "ui/timeline/timeline_scene.h"

#include <QColor>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope::ui {

struct Theme;

QRgb spanColour(std::string_view name, const Theme& theme);
/// a where t is 0, b where it is 1; opaque.
QRgb mixed(QRgb a, QRgb b, double t);

/// Dark or light, whichever can be read on this.
QRgb textOn(QRgb colour);

/// Colours of all names of a run, by the name's number; extended as names arrive, and made anew for the names of
/// another run (TimelineData::table).
class SpanColours {
public:
    const std::vector<QRgb>& of(std::uint64_t table, const std::vector<std::string>& names, const Theme& theme);

private:
    std::vector<QRgb> colours_;
    std::uint64_t table_ = 0;
    QString theme_;
};

} // namespace kvscope::ui
