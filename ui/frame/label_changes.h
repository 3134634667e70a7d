// Changes what people say of runs: names, notes, tags and pins, which the traces keep. The changes are written on
// worker threads, one after the other.
#pragma once

#include "profiler/read/run_labels.h"
#include "ui/frame/workspace.h"

#include <QObject>
#include <QString>

#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace kvscope::ui {

/// What changes in the labels of a run; what is absent stays as it is.
struct LabelEdit {
    std::optional<std::string> name, note;   // empty: the run has its recorded name, or no note
    std::vector<std::string> added, removed; // tags
    std::optional<bool> pinned;
    bool empty() const { return !name && !note && added.empty() && removed.empty() && !pinned; }
    RunLabels applied(RunLabels labels) const;
};

/// Tells all windows of the program that the labels of a trace have changed.
class LabelWatch final : public QObject {
    Q_OBJECT
public:
    static LabelWatch& instance();

signals:
    void changed(const QString& trace);
};

/// Lives on the GUI thread.
class LabelChanges final : public QObject {
    Q_OBJECT
public:
    LabelChanges(Workspace& workspace, QObject* parent);
    /// Writes the change into the traces of these runs. Afterwards every workspace reads the rows of the runs again.
    void ask(const std::vector<RunKey>& runs, const LabelEdit& edit);
    /// Whether a change is not written yet.
    bool busy() const { return running_ || !tasks_.empty(); }

signals:
    void failed(const QString& sentence); // a change could not be written; those of other runs go on

private:
    struct Task {
        RunKey run;
        LabelEdit edit;
    };
    void startNext();

    Workspace& workspace_;
    std::deque<Task> tasks_;
    bool running_ = false;
};

} // namespace kvscope::ui
