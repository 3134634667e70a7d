// The colour maps that the user can choose from. The lightness of each changes evenly, so that colour-blind readers and
// readers of a grey print see its values in the right order; tests/ui/colour_maps_test.cpp checks this.
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
    std::array<QRgb, 17> stops; // colours at evenly spaced places
    /// The colour at place t in 0..1; t is clamped, and NaN counts as 0.
    QRgb at(double t) const;
};

/// Maps from low to high values; the first is the default.
std::span<const ColourMap> sequentialMaps();
/// Maps from negative to positive values with a neutral middle; the first is the default.
std::span<const ColourMap> divergingMaps();
/// The map with this id, or the first one if no map has it.
const ColourMap& colourMap(std::span<const ColourMap> maps, const QString& id);

/// Draws the map as a bar for menus and previews. `size`: logical pixels.
QPixmap colourMapBar(const ColourMap& map, QSize size, double pixelRatio);

} // namespace kvscope::ui
