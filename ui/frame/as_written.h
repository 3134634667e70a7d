// Text of a file where Qt would take it for something else.
#pragma once

#include <QString>

namespace kvscope::ui {

/// For tooltips and message boxes, which take for markup what looks like it: it is shown as it is written.
QString asWritten(const QString& text);
/// For buttons, menu entries and tabs, in which & marks a key.
QString buttonText(QString text);

} // namespace kvscope::ui
