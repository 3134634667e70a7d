// The colours of the light and of the dark theme. The user chooses colour maps independently of the theme.
#pragma once

#include <QColor>
#include <QFont>
#include <QPalette>
#include <QString>

#include <array>

class QApplication;
class QWidget;

namespace kvscope::ui {

struct ColourMap;

struct Theme {
    QString id; // "light" or "dark"
    QColor window, base, raised, border, text, mutedText, accent, danger, warning, ok;
    QColor plotBackground, plotGrid, plotAxis, undefinedCell; // undefinedCell: cells whose value is NaN
    std::array<QColor, 5> origin;     // [Origin] sink, window, query-aware, query-agnostic, token-level
    std::array<QColor, 14> component; // in the order of kStageNames, then embed, lm_head, sample, other
    std::array<QColor, 5> resource;   // [Resource] HBM bandwidth, compute, link, HBM capacity, host memory
    QColor hit, miss, runA, runB, cursor;
    QColor found; // marks of found text over the selection mask

    static const Theme& light();
    static const Theme& dark();
    static const Theme& byId(const QString& id); // the light theme if the id is unknown
    static const Theme& current();
    /// Gives the application Fusion style, the palette, the style sheet and the font of the theme, where it does not
    /// have them yet. The font is that of the system, or a bundled one if the system has none.
    static void apply(QApplication& app, const Theme& theme);
    /// The colour of t in 0..1 on the colour map that the user chose (ui/look/colour_maps.h).
    static QRgb sequential(double t);
    static QRgb diverging(double t); // t = 0.5 is the neutral middle
    static const ColourMap& sequentialMap();
    static const ColourMap& divergingMap();
    /// Chooses the colour maps of the whole program by their ids; an unknown id chooses the default map. A view uses
    /// them after its next applyTheme.
    static void chooseMaps(const QString& sequential, const QString& diverging);
};

/// Gives one widget, and all that is in it, the palette and the style sheet of a theme. Until this object ends, that
/// theme is Theme::current(); then the widget has its own look again. Costs a small part of Theme::apply, which
/// restyles every widget of the program.
class ThemeOfOneWidget {
public:
    ThemeOfOneWidget(QWidget& widget, const Theme& theme);
    ~ThemeOfOneWidget();
    ThemeOfOneWidget(const ThemeOfOneWidget&) = delete;
    ThemeOfOneWidget& operator=(const ThemeOfOneWidget&) = delete;

private:
    QWidget& widget_;
    const Theme& before_;
    const QString sheet_;
    const QPalette palette_;
    const bool hadPalette_;
};

} // namespace kvscope::ui
