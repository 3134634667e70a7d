// A view: one file plus one line in registry.cpp. Views never name each other; they talk through the Workspace.
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
    /// Writes what is shown as a picture of `size` logical pixels. Format by suffix: png, svg, pdf. False if it cannot.
    virtual bool exportImage(const QString& path, QSize size) = 0;
    /// The numbers behind the picture, as CSV with a header line; empty if there are none.
    virtual QString exportCsv() const = 0;
    /// The same to be written on any thread: views with more numbers than a moment is long for make them there.
    virtual NumberWriter numbers() const { return numbersOf(exportCsv()); }
    // Away from the GUI thread, with progress and a way to stop it over the view, which says how it ended.
    /// CSV or, by the suffix, JSON lines.
    void exportNumbers(const QString& path);
    void copyNumbers(); // separated by tabs
    /// SQL that gives what is shown from the trace of the current run; empty where no statement does.
    virtual QString sql() const { return {}; }
    /// What is shown, to the clipboard.
    virtual void copyImage();
    virtual void resetZoom() = 0;
    virtual void undoZoom() = 0;
    virtual void redoZoom() = 0;
    virtual void applyTheme(const Theme& theme) = 0;

signals:
    /// Ends every exportNumbers and copyNumbers. `path`: empty for the clipboard; `problem`: a sentence, or empty.
    void numbersExported(const QString& path, const QString& problem, bool cancelled);

private:
    ExportStrip& strip();
    ExportStrip* strip_ = nullptr;
};

struct ViewEntry {
    const char* id; // `render --view` name, layout key
    const char* title;
    const char* shortcut; // e.g. "Ctrl+1"
    const char* help;     // one sentence: what it shows
    View* (*make)(Workspace& workspace, QWidget* parent);
    bool withoutRun = false; // it has something to show before any run is open
};

/// All views in menu order.
const std::vector<ViewEntry>& views();

} // namespace kvscope::ui
