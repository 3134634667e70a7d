// Collects the shortcuts and gestures of a window from its actions and widgets for the help, so that the list is always
// up to date.
#pragma once

#include "ui/frame/shortcuts.h"

#include <vector>

class QWidget;

namespace kvscope::ui {

/// The actions and shortcuts of the window and its widgets, grouped and in the order in which they were made, and then
/// the gestures of plots, token strip, run list and SQL editor.
std::vector<ShortcutText> shortcutsOf(const QWidget& window);

} // namespace kvscope::ui
