// The palette and the style sheet of a theme, made for Qt's style Fusion.
#pragma once

#include <QPalette>
#include <QString>

namespace kvscope::ui {

struct Theme;

QPalette paletteOf(const Theme& theme);
QString styleSheetOf(const Theme& theme);

} // namespace kvscope::ui
