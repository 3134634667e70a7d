// One view of a trace as a picture, without a window on any screen: `kvscope render`, reports, documentation.
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
    QString compareTrace{}; // a second run to overlay; empty: none
    int compareRunId = -1;
    Cursor cursor{};     // layer, KV head and sequence for views that show one
    bool window = false; // the whole main window with the view in front; a .png, at the program's scale factor
};

/// Needs a QApplication (platform "offscreen" will do) and runs its event loop until every read has ended.
/// @throws Error: unknown view, theme or suffix, unreadable trace, no such run, unwritable file
void renderView(const RenderRequest& request);

/// "locality, selection, ..." for messages.
QString viewNames();

} // namespace kvscope::ui
