// Reads and writes the notes of the shown run beside the GUI thread, and takes changes back.
#pragma once

#include "ui/frame/workspace.h"
#include "ui/views/note_history.h"

#include <QObject>
#include <QString>

#include <deque>
#include <vector>

namespace kvscope::ui {

/// Tasks are done on a worker one after the other, in the order in which they were asked for: what takes a change back
/// is known only when the change is written. Each task ends with the notes as they are then.
class NoteTasks final : public QObject {
    Q_OBJECT
public:
    NoteTasks(Workspace& workspace, QObject* parent);

    /// Reads the notes of the shown run. Done without being asked when a trace's notes are changed elsewhere.
    void read();
    /// `run`: whose note it is, which another one may have replaced as the shown run.
    void write(const RunKey& run, NoteStep step);
    /// Takes back the last change that was made to the shown run's notes here.
    void undo();
    /// To be called when another run is shown: undo takes back no change of the run before.
    void forgetChanges() { history_.clear(); }

signals:
    /// The notes of the shown run. problem: why the task failed; empty: it did not
    void answered(const std::vector<kvscope::Note>& notes, bool canUndo, const QString& problem);

private:
    struct Task {
        enum class Kind { Read, Write, Undo };
        Kind kind = Kind::Read;
        RunKey run;
        NoteStep step; // Write
    };
    struct Answer;

    void ask(Task task);
    void startNext();
    void take(const Task& task, Answer answer);
    bool isShown(const RunKey& run) const;

    Workspace& workspace_;
    std::deque<Task> waiting_;
    int asked_ = 0;       // tasks that a worker was asked for so far
    int underWay_ = 0;    // the number of the one under way; 0: none is
    NoteHistory history_; // of the shown run
};

} // namespace kvscope::ui
