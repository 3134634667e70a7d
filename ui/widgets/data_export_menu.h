// The menu that exports the current run to files for other programs: its timeline for Perfetto, and its tables.
#pragma once

#include "ui/frame/trace_numbers.h"

#include <QMenu>

#include <functional>
#include <optional>

namespace kvscope::ui {

class ExportStrip;
class Workspace;

class DataExportMenu final : public QMenu {
    Q_OBJECT
public:
    using Range = std::function<std::optional<ExportRange>()>;
    /// `range` returns the range that is marked now, or nothing. The progress of an export lies over `over`.
    DataExportMenu(Workspace& workspace, Range range, QWidget* over, QWidget* parent);

    // Both export the current run on a worker thread and show the progress with a button to stop.
    void writePerfetto(const QString& path, bool markedOnly);
    /// CSV, or JSON lines where `path` ends in .jsonl.
    void writeTable(ExportTable table, const QString& path, bool markedOnly);

signals:
    /// Emitted once at the end of every export. `problem`: a sentence about what went wrong; empty: nothing did.
    void finished(const QString& path, const QString& problem, bool cancelled);

private:
    std::optional<TracePart> part(bool markedOnly) const;
    QString suggested(const QString& what) const;
    void choosePerfetto(bool markedOnly);
    void chooseTable(ExportTable table, bool markedOnly);
    void addTable(QMenu& menu, ExportTable table, const QString& title, const QString& help);
    void follow(); // enables the entries for what can be exported now

    Workspace& workspace_;
    Range range_;
    ExportStrip* strip_;
    std::vector<QAction*> ofRun_, ofRange_;
};

} // namespace kvscope::ui
