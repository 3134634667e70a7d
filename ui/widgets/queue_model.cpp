#include "ui/widgets/queue_model.h"

#include "ui/frame/as_written.h"
#include "ui/frame/run_names.h"
#include "ui/frame/units.h"

#include <QCoreApplication>
#include <QDir>

#include <algorithm>

namespace kvscope::ui {
namespace {

constexpr int kLookMs = 400;          // between two looks how far the running one is
constexpr double kReadingShare = 0.5; // of the progress: reading the model and the prompt

using QueueState = QueuedRun::State;

QString inQueue(const char* text) { return QCoreApplication::translate("Queue", text); }

const OpenRun* openRunOf(const QueuedRun& run, const Workspace& workspace) {
    return run.key ? workspace.find({QDir::cleanPath(run.key->path), run.key->runId}) : nullptr;
}

/// Decode steps that are in the trace; each gives one token of every sequence.
int stepsOf(const QueuedRun& run, const Workspace& workspace) {
    const OpenRun* open = openRunOf(run, workspace);
    return open != nullptr ? open->row.steps : 0;
}

double shareDone(const QueuedRun& run, const Workspace& workspace) {
    const int steps = stepsOf(run, workspace), tokens = std::max(1, run.request.options.maxNewTokens);
    if (steps == 0) return kReadingShare * std::clamp(run.fraction, 0.0, 1.0);
    return kReadingShare + (1 - kReadingShare) * std::min(1.0, double(steps) / tokens);
}

} // namespace

QString queuedDetail(const QueuedRun& run, const Workspace& workspace) {
    switch (run.state) {
    case QueueState::Waiting:
        return inQueue("waits");
    case QueueState::Running: {
        if (const int steps = stepsOf(run, workspace); steps > 0)
            return inQueue("token %1 of %2").arg(formatCount(steps), formatCount(run.request.options.maxNewTokens));
        if (run.what.isEmpty()) return inQueue("begins");
        return inQueue("%1, %2 %").arg(run.what).arg(int(100 * std::clamp(run.fraction, 0.0, 1.0)));
    }
    case QueueState::Finished: {
        const int steps = stepsOf(run, workspace);
        return steps > 0 ? inQueue("finished, %1 tokens").arg(formatCount(steps)) : inQueue("finished");
    }
    case QueueState::Failed:
        return inQueue("failed: %1").arg(run.sentence);
    case QueueState::Cancelled:
        return run.key ? inQueue("stopped; what was recorded is kept") : inQueue("cancelled");
    }
    return {};
}

QString queueText(const RunQueue& queue) {
    const int all = int(queue.runs().size()), waiting = queue.waiting(), failed = queue.count(QueueState::Failed);
    if (all == 0) return {};
    const int done = all - waiting - (queue.running() != nullptr ? 1 : 0);
    QString text = inQueue("%1 of %2 done").arg(formatCount(done), formatCount(all));
    if (failed > 0) text += inQueue(", %1 failed").arg(formatCount(failed));
    if (waiting > 0) text += waiting == 1 ? inQueue(", 1 waits") : inQueue(", %1 wait").arg(formatCount(waiting));
    if (waiting > 0 && queue.isHeld()) text += inQueue("; paused");
    return text;
}

QueueModel::QueueModel(RunQueue& queue, Workspace& workspace, QObject* parent)
    : QAbstractListModel(parent), queue_(queue), workspace_(workspace) {
    connect(&queue_, &RunQueue::changed, this, &QueueModel::follow);
    connect(&queue_, &RunQueue::advanced, this, &QueueModel::followRunning);
    for (const auto signal :
         {&Workspace::runsChanged, &Workspace::compareChanged, &Workspace::currentChanged, &Workspace::advanced})
        connect(&workspace_, signal, this, [this] {
            if (!ids_.empty()) emit dataChanged(index(0), index(int(ids_.size()) - 1));
        });
    timer_.setInterval(kLookMs);
    connect(&timer_, &QTimer::timeout, this, &QueueModel::followRunning);
    follow();
}

void QueueModel::follow() {
    if (queue_.running() == nullptr)
        timer_.stop();
    else if (!timer_.isActive())
        timer_.start();
    std::vector<int> ids;
    for (const QueuedRun& run : queue_.runs()) ids.push_back(run.id);
    if (ids == ids_) {
        if (!ids_.empty()) emit dataChanged(index(0), index(int(ids_.size()) - 1));
        return;
    }
    beginResetModel();
    ids_ = std::move(ids);
    endResetModel();
}

void QueueModel::followRunning() {
    const QueuedRun* run = queue_.running();
    if (run == nullptr) return;
    if (const QModelIndex at = indexOf(run->id); at.isValid()) emit dataChanged(at, at);
}

int QueueModel::rowCount(const QModelIndex& parent) const { return parent.isValid() ? 0 : int(ids_.size()); }

int QueueModel::idOf(const QModelIndex& index) const {
    return index.isValid() && index.row() < int(ids_.size()) ? ids_[index.row()] : 0;
}

QModelIndex QueueModel::indexOf(int id) const {
    const auto at = std::find(ids_.begin(), ids_.end(), id);
    return at == ids_.end() ? QModelIndex() : index(int(at - ids_.begin()));
}

QVariant QueueModel::data(const QModelIndex& index, int role) const {
    const QueuedRun* run = queue_.find(idOf(index));
    if (run == nullptr) return {};
    const OpenRun* open = openRunOf(*run, workspace_);
    switch (role) {
    case Qt::DisplayRole:
        return run->name;
    case Qt::ToolTipRole:
        return asWritten(run->name + QLatin1Char('\n') + queuedDetail(*run, workspace_));
    case Qt::AccessibleTextRole:
        return run->name + QStringLiteral(", ") + queuedDetail(*run, workspace_);
    case StateRole:
        return int(run->state);
    case DetailRole:
        return queuedDetail(*run, workspace_);
    case ShareRole:
        return run->state == QueueState::Running ? shareDone(*run, workspace_) : 0.0;
    case PlaceRole:
        if (const auto place = open != nullptr ? placeOf(workspace_, open->key) : std::nullopt) return int(*place);
        return {};
    case ColourRole:
        return open != nullptr ? QVariant(lastingColour(open->key)) : QVariant();
    default:
        return {};
    }
}

} // namespace kvscope::ui
