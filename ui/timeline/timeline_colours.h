// The colour of a span by its name: stages as in the breakdown, kernels as the stage they were launched for.
#pragma once

#include "ui/timeline/timeline_scene.h"

#include <QColor>

#include <string_view>
#include <vector>

namespace kvscope::ui {

struct Theme;

QRgb spanColour(std::string_view name, const Theme& theme);
/// a where t is 0, b where it is 1; opaque.
QRgb mixed(QRgb a, QRgb b, double t);

/// Dark or light, whichever can be read on this.
QRgb textOn(QRgb colour);

/// Colours of all names of an index, extended as names arrive.
class SpanColours {
public:
    const std::vector<QRgb>& of(const std::vector<std::string>& names, const Theme& theme);

private:
    std::vector<QRgb> colours_;
    QString theme_;
};

} // namespace kvscope::ui
