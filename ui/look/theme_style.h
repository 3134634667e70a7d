// Palette and style sheet of a theme, for Fusion.
#pragma once

#include <QPalette>
#include <QString>

namespace kvscope::ui {

struct Theme;

QPalette paletteOf(const Theme& theme);
QString styleSheetOf(const Theme& theme);

} // namespace kvscope::ui
