// Renders a view of a trace as a picture without a window on any screen: for `kvscope render`, reports and the
// documentation.
#pragma once

#include "ui/frame/workspace.h"

#include <QSize>
#include <QString>

namespace kvscope::ui {

struct RenderRequest {
    QString trace{};
    QString view{};         // id from views()
    QString output{};       // .png, .svg or .pdf
    QSize size{1600, 1000}; // logical pixels
    double scale = 1;       // pixels of a PNG per logical pixel
    QString theme = QStringLiteral("light");
    int runId = -1;         // -1: the first run
    QString compareTrace{}; // trace of a second run to compare with; empty: none
    int compareRunId = -1;
    Cursor cursor{}; // the place that the views show
    /// Renders the whole main window with the view in front, as a .png at the program's scale factor.
    bool window = false;
};

/// Needs a QApplication (platform "offscreen" will do) and runs its event loop until every read has ended.
/// @throws Error: unknown view, theme or suffix, unreadable trace, no such run, unwritable file
void renderView(const RenderRequest& request);

/// The ids of all views, for messages: "locality, selection, ...".
QString viewNames();

} // namespace kvscope::ui
