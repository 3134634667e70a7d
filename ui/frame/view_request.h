// Takes the user from one view to another view of the same window. The views do not know each other, only the ids.
#pragma once

#include <QString>

#include <functional>

class QMenu;
class QWidget;

namespace kvscope::ui {

class View;

/// The view with this id in a window, wherever it stands. @return null: the window has not made it
View* viewIn(const QWidget& window, const QString& id);

/// Brings the view with this id to the front. If the view has a picker of metrics that offers `metric`, chooses that
/// metric.
/// @return false if there is no such view, e.g. while a picture is rendered
bool requestView(const QWidget& from, const QString& id, const QString& metric = {});

/// Brings the view with this id to the front and, if it can be zoomed to a time (ShowsTime), zooms it to this one.
/// @return false if there is no such view
bool requestTime(const QWidget& from, const QString& id, double fromNs, double toNs);

/// Adds a submenu "Show this place in" with the views of the window that show a run, except the view with the title
/// `exceptTitle`. Before a view is shown, `before` is called to move the shared cursor. Adds nothing if the window has
/// no such view.
void addShowIn(QMenu& menu, QWidget& from, const QString& exceptTitle, std::function<void()> before);

} // namespace kvscope::ui
