// How one view sends a person to another without knowing it: by its id, through the window that shows both.
#pragma once

#include <QString>

class QWidget;

namespace kvscope::ui {

/// Brings the view with this id to the front and, if it has a picker of metrics and `metric` is one of them, chooses
/// it.
/// @return false where there is no such view, e.g. while a picture is rendered
bool requestView(const QWidget& from, const QString& id, const QString& metric = {});

} // namespace kvscope::ui
