// Colours of the two themes. Colour maps are chosen apart from the theme.
#pragma once

#include <QColor>
#include <QFont>
#include <QString>

#include <array>

class QApplication;

namespace kvscope::ui {

struct ColourMap;

struct Theme {
    QString id; // "light" or "dark"
    QColor window, base, raised, border, text, mutedText, accent, danger, warning, ok;
    QColor plotBackground, plotGrid, plotAxis, undefinedCell; // NaN cells
    std::array<QColor, 5> origin;     // by Origin: sink, window, query-aware, query-agnostic, token-level
    std::array<QColor, 14> component; // kStageNames, then embed, lm_head, sample, other
    std::array<QColor, 5> resource;   // by Resource: HBM bandwidth, compute, link, HBM capacity, host memory
    QColor hit, miss, runA, runB, cursor;

    static const Theme& light();
    static const Theme& dark();
    static const Theme& byId(const QString& id); // unknown: light
    static const Theme& current();
    /// Fusion style, palette, style sheet, bundled or system font.
    static void apply(QApplication& app, const Theme& theme);
    /// The chosen colour maps (ui/colour_maps.h): t in 0..1.
    static QRgb sequential(double t);
    static QRgb diverging(double t); // 0.5 is neutral
    static const ColourMap& sequentialMap();
    static const ColourMap& divergingMap();
    /// For the whole program; views take it over with their next applyTheme. Unknown: the default.
    static void chooseMaps(const QString& sequential, const QString& diverging);
};

} // namespace kvscope::ui
