// The colour maps a person may choose from. Each is even in lightness and keeps its order for colour-blind readers and
// in grey print; tests/ui/colour_maps_test.cpp holds them to it.
#pragma once

#include <QPixmap>
#include <QRgb>
#include <QSize>
#include <QString>

#include <array>
#include <span>

namespace kvscope::ui {

struct ColourMap {
    const char *id, *title, *help;
    std::array<QRgb, 17> stops; // evenly spaced
    /// t in 0..1, clamped; NaN is the low end.
    QRgb at(double t) const;
};

/// Low to high. The first is the default.
std::span<const ColourMap> sequentialMaps();
/// Negative to positive through a neutral middle. The first is the default.
std::span<const ColourMap> divergingMaps();
/// Unknown: the first.
const ColourMap& colourMap(std::span<const ColourMap> maps, const QString& id);

/// The map as a bar of logical pixels, for menus and previews.
QPixmap colourMapBar(const ColourMap& map, QSize size, double pixelRatio);

} // namespace kvscope::ui
