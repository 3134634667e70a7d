// How much of a widget's height a person sees: a view in a scroll area is at least as high as what is in it asks for.
#pragma once

#include <QAbstractScrollArea>
#include <QWidget>

#include <algorithm>

namespace kvscope::ui {

/// px of the widget's height that its window, and the scroll areas around it, have room for when they are scrolled to
/// its top.
inline int heightInSight(const QWidget& widget) {
    int height = widget.height(), above = 0; // above: between the top of the ancestor and the widget
    for (const QWidget* at = &widget; !at->isWindow() && at->parentWidget() != nullptr; at = at->parentWidget()) {
        const auto* scroll = qobject_cast<const QAbstractScrollArea*>(at->parentWidget()->parentWidget());
        const bool scrolled = scroll != nullptr && scroll->viewport() == at->parentWidget();
        if (!scrolled) above += at->y();
        height = std::min(height, at->parentWidget()->height() - above);
    }
    return height;
}

} // namespace kvscope::ui
