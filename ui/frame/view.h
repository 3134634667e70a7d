// The base class of views. A view is one file and one line in registry.cpp. Views do not know each other and
// communicate through the Workspace.
#pragma once

#include "ui/frame/numbers.h"

#include <QSize>
#include <QString>
#include <QWidget>

#include <vector>

namespace kvscope::ui {

class ExportStrip;
class Workspace;
struct Theme;

class View : public QWidget {
    Q_OBJECT
public:
    using QWidget::QWidget;
    /// The id of its ViewEntry; empty while no window has made the view.
    const QString& id() const { return id_; }
    void setId(const QString& id) { id_ = id; }
    /// Writes the view as a picture of `size` logical pixels. The suffix of `path` decides about the format: png, svg
    /// or pdf. @return false if the picture could not be written
    virtual bool exportImage(const QString& path, QSize size) = 0;
    /// The numbers behind the picture, as CSV with a header line; empty if there are none.
    virtual QString exportCsv() const = 0;
    /// A function that can write the same numbers on any thread. A view whose numbers take long to write overrides it.
    virtual NumberWriter numbers() const { return numbersOf(exportCsv()); }
    // exportNumbers and copyNumbers write on a worker thread. A strip over the view shows the progress with a button to
    // stop, and then how the export ended.
    /// Writes CSV, or JSON lines if the suffix of `path` is .jsonl.
    void exportNumbers(const QString& path);
    void copyNumbers(); // to the clipboard, separated by tabs
    /// SQL that returns the shown numbers from the trace of the current run; empty if no statement does.
    virtual QString sql() const { return {}; }
    /// Copies the picture of the view to the clipboard.
    virtual void copyImage();
    virtual void resetZoom() = 0;
    virtual void undoZoom() = 0;
    virtual void redoZoom() = 0;
    virtual void applyTheme(const Theme& theme) = 0;

signals:
    /// Emitted once at the end of every exportNumbers and copyNumbers. `path`: empty for the clipboard. `problem`: a
    /// sentence about what went wrong; empty: nothing did.
    void numbersExported(const QString& path, const QString& problem, bool cancelled);

private:
    ExportStrip& strip();
    ExportStrip* strip_ = nullptr;
    QString id_;
};

struct ViewEntry {
    const char* id; // name for `render --view` and key in the settings
    const char* title;
    const char* shortcut; // e.g. "Ctrl+1"
    const char* help;     // a sentence that says what the view shows
    View* (*make)(Workspace& workspace, QWidget* parent);
    /// Whether the view has something to show while no run is open.
    bool withoutRun = false;
};

/// All views in menu order.
const std::vector<ViewEntry>& views();

} // namespace kvscope::ui
