#include "ui/frame/label_changes.h"

#include "base/error.h"

#include <QPointer>

#include <algorithm>
#include <memory>
#include <utility>

namespace kvscope::ui {

RunLabels LabelEdit::applied(RunLabels labels) const {
    if (name) labels.name = *name;
    if (note) labels.note = *note;
    if (pinned) labels.pinned = *pinned;
    for (const std::string& tag : removed) std::erase(labels.tags, tag);
    labels.tags.insert(labels.tags.end(), added.begin(), added.end()); // setLabels leaves duplicates out
    return labels;
}

LabelWatch& LabelWatch::instance() {
    static LabelWatch watch;
    return watch;
}

LabelChanges::LabelChanges(Workspace& workspace, QObject* parent) : QObject(parent), workspace_(workspace) {}

void LabelChanges::ask(const std::vector<RunKey>& runs, const LabelEdit& edit) {
    if (edit.empty()) return;
    for (const RunKey& run : runs) tasks_.push_back({run, edit});
    if (!running_) startNext();
}

void LabelChanges::startNext() {
    running_ = false;
    if (tasks_.empty()) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    running_ = true;
    // Destroyed with the request. A request whose file cannot be opened has no answer, and the next change goes on all
    // the same.
    const std::shared_ptr<void> turn(nullptr, [changes = QPointer(this)](void*) {
        if (!changes) return;
        QMetaObject::invokeMethod(
            changes.data(),
            [changes] {
                if (changes) changes->startNext();
            },
            Qt::QueuedConnection);
    });
    workspace_.query<QString>(
        this, "labels", task.run,
        [task](TraceReader& reader) -> QString {
            try {
                const auto row = reader.run(task.run.runId);
                if (!row) return QObject::tr("%1 has no run %2 any more").arg(task.run.path).arg(task.run.runId);
                setLabels(reader.path(), task.run.runId, task.edit.applied(labelsOf(*row)));
                return {};
            } catch (const Error& error) {
                if (error.kind == ErrorKind::Cancelled) throw;
                return QString::fromStdString(oneLine(error));
            }
        },
        [this, task, turn](const QString& problem) {
            if (problem.isEmpty())
                emit LabelWatch::instance().changed(task.run.path);
            else
                emit failed(problem);
        });
}

} // namespace kvscope::ui
