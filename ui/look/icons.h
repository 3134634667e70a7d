// Line icons in the colours of the theme, drawn from vector shapes and so sharp at every screen scale.
#pragma once

#include <QIcon>

namespace kvscope::ui {

struct Theme;

enum class Icon {
    Run,
    Pause,
    Step,
    Stop,
    Open,
    Folder,
    Close,
    Reset,
    Back,
    Forward,
    Up,
    Down,
    Help,
    Export,
    Report,
    Moon,
    Sun,
    Undo,
    Redo,
    Fit,
    Add,
    Live,
    Float, // into a window of its own
    Beside // into the window again
};

QIcon makeIcon(Icon icon, const QColor& color, const QColor& disabled);
/// The icon in the text colour of the theme.
QIcon makeIcon(Icon icon, const Theme& theme);

} // namespace kvscope::ui
