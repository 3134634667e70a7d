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
/// The opaque colour between a (at t = 0) and b (at t = 1).
QRgb mixed(QRgb a, QRgb b, double t);

/// A dark or a light colour for text, whichever can be read on this colour.
QRgb textOn(QRgb colour);

/// Colours of all names of a run, by the name's number; extended as names arrive, and made anew for the names of
/// another run (TimelineData::table).
class SpanColours {
public:
    const Numbered<QRgb>& of(std::uint64_t table, const std::vector<std::string>& names, const Theme& theme);

private:
    Numbered<QRgb> colours_; // [name]
    std::uint64_t table_ = 0;
    QString theme_;
};

} // namespace kvscope::ui
