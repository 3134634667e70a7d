// Every key and gesture of a window, collected from its actions and widgets, so that the help cannot go stale.
#pragma once

#include "ui/frame/shortcuts.h"

#include <vector>

class QWidget;

namespace kvscope::ui {

/// All actions and shortcuts of the window and what is in it, by group in the order they were made, then the gestures
/// of plots, token strip and run list.
std::vector<ShortcutText> shortcutsOf(const QWidget& window);

} // namespace kvscope::ui
