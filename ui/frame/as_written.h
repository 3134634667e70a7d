// Prepares text that comes from files for places where Qt would interpret it as markup or as a key.
#pragma once

#include <QString>

namespace kvscope::ui {

/// Text for tooltips and message boxes, which interpret text that looks like markup: the result is shown as `text` is
/// written, but for controls of writing direction (withoutDirections).
QString asWritten(const QString& text);
/// Text of a file in a sentence of the program, or on its own: controls of writing direction, which would turn round
/// the sentence as well, are shown as on a terminal, e.g. \u202e.
QString withoutDirections(QString text);
/// Text for buttons, menu entries and tabs, in which & marks a key: every & is doubled.
QString buttonText(QString text);

} // namespace kvscope::ui
