#include "ui/views/note_tasks.h"

#include "base/error.h"
#include "ui/views/note_watch.h"

#include <QPointer>

#include <memory>
#include <optional>
#include <utility>

namespace kvscope::ui {

struct NoteTasks::Answer {
    std::vector<Note> notes;
    std::optional<NoteStep> inverse; // something was written
    QString problem;
    bool isOver = false; // the note is another by now: trying again is no use
};

NoteTasks::NoteTasks(Workspace& workspace, QObject* parent) : QObject(parent), workspace_(workspace) {
    connect(&NoteWatch::instance(), &NoteWatch::changed, this, [this](const QString& trace, const QObject* by) {
        const OpenRun* run = workspace_.current();
        if (by != this && run && run->key.path == trace) read();
    });
}

void NoteTasks::read() {
    if (const OpenRun* run = workspace_.current()) ask({Task::Kind::Read, run->key, {}});
}

void NoteTasks::write(const RunKey& run, NoteStep step) { ask({Task::Kind::Write, run, std::move(step)}); }

void NoteTasks::undo() {
    if (const OpenRun* run = workspace_.current()) ask({Task::Kind::Undo, run->key, {}});
}

bool NoteTasks::isShown(const RunKey& run) const { return workspace_.current() && workspace_.current()->key == run; }

void NoteTasks::ask(Task task) {
    waiting_.push_back(std::move(task));
    if (underWay_ == 0) startNext();
}

void NoteTasks::startNext() {
    underWay_ = 0;
    while (!waiting_.empty() && underWay_ == 0) {
        Task task = std::move(waiting_.front());
        waiting_.pop_front();
        const bool shown = isShown(task.run);
        if (task.kind == Task::Kind::Undo && shown && !history_.empty())
            task.step = history_.last();
        else if (task.kind != Task::Kind::Write && (task.kind == Task::Kind::Undo || !shown))
            continue;
        underWay_ = ++asked_;
        // Destroyed with the request, so that a request which failed, or whose file cannot be opened, counts as
        // answered.
        std::shared_ptr<void> turn(nullptr, [tasks = QPointer(this), request = underWay_](void*) {
            if (!tasks) return;
            const auto goOn = [tasks, request] {
                if (tasks && tasks->underWay_ == request) tasks->startNext();
            };
            QMetaObject::invokeMethod(tasks.data(), goOn, Qt::QueuedConnection);
        });
        workspace_.query<Answer>(
            this, "notes", task.run,
            [task](TraceReader& reader) {
                Answer answer;
                try {
                    if (task.kind != Task::Kind::Read) answer.inverse = makeStep(task.step, reader.path());
                } catch (const Error& error) {
                    answer.problem = QString::fromStdString(oneLine(error));
                    answer.isOver = error.kind == ErrorKind::BadInput;
                }
                answer.notes = readNotes(reader, task.run.runId);
                return answer;
            },
            [this, task, turn](Answer answer) {
                take(task, std::move(answer));
                startNext();
            });
    }
}

void NoteTasks::take(const Task& task, Answer answer) {
    if (answer.inverse) emit NoteWatch::instance().changed(task.run.path, this);
    if (!isShown(task.run)) {
        if (!answer.problem.isEmpty()) emit workspace_.failed(answer.problem); // the list of notes is out of sight
        return;
    }
    if (task.kind == Task::Kind::Write && answer.inverse) {
        history_.push(std::move(*answer.inverse));
    } else if (task.kind == Task::Kind::Undo && !history_.empty()) { // empty: the run was opened anew meanwhile
        if (answer.inverse)
            history_.lastWasMade(*answer.inverse);
        else if (answer.isOver)
            history_.dropLast();
    }
    emit answered(answer.notes, !history_.empty(), answer.problem);
}

} // namespace kvscope::ui
