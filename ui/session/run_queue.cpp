#include "ui/session/run_queue.h"

#include "base/error.h"

#include <QDir>
#include <QFile>
#include <QFileInfo>
#include <QTimer>

#include <algorithm>
#include <utility>

namespace kvscope::ui {

namespace {

using QueueState = QueuedRun::State;

} // namespace

RunQueue::RunQueue(SessionController& controller, QObject* parent) : QObject(parent), controller_(controller) {
    connect(&controller_, &SessionController::began, this, [this](const RunKey& key) {
        if (QueuedRun* run = findRun(runningId_)) run->key = key;
        emit changed();
    });
    connect(&controller_, &SessionController::progress, this, [this](double fraction, const QString& what) {
        QueuedRun* run = findRun(runningId_);
        if (!run) return;
        run->fraction = fraction;
        run->what = what;
        emit advanced();
    });
    connect(&controller_, &SessionController::finished, this,
            [this](bool completed) { end(completed ? QueueState::Finished : QueueState::Cancelled, {}); });
    connect(&controller_, &SessionController::failed, this, [this](const QString& sentence) {
        if (!controller_.isActive()) end(QueueState::Failed, sentence); // else a model could not be loaded
    });
}

QueuedRun* RunQueue::findRun(int id) {
    const auto at = std::find_if(runs_.begin(), runs_.end(), [&](const QueuedRun& run) { return run.id == id; });
    return at == runs_.end() ? nullptr : &*at;
}

const QueuedRun* RunQueue::find(int id) const { return const_cast<RunQueue*>(this)->findRun(id); }

const QueuedRun* RunQueue::running() const { return find(runningId_); }

int RunQueue::count(QueueState state) const {
    return int(std::count_if(runs_.begin(), runs_.end(), [&](const QueuedRun& run) { return run.state == state; }));
}

RunQueue::Group& RunQueue::groupOf(const QueuedRun& run) {
    return *std::find_if(groups_.begin(), groups_.end(), [&](const Group& group) { return group.number == run.group; });
}

int RunQueue::newGroup(bool isSweep, const QString& trace) {
    groups_.push_back({++lastGroup_, trace.isEmpty() ? trace : QDir::cleanPath(trace), isSweep, false, {}});
    return lastGroup_;
}

bool RunQueue::isOpen(int group) const {
    return std::any_of(runs_.begin(), runs_.end(), [&](const QueuedRun& run) {
        return run.group == group && (run.state == QueueState::Waiting || run.state == QueueState::Running);
    });
}

void RunQueue::append(const QString& name, SessionRequest request, int group) {
    request.inBackground = true;
    request.options.name = name.toStdString();
    QueuedRun run;
    run.id = ++lastId_;
    run.group = group;
    run.name = name;
    run.request = std::move(request);
    runs_.push_back(std::move(run));
}

void RunQueue::add(const QString& name, const SessionRequest& request) {
    const auto open = std::find_if(groups_.begin(), groups_.end(),
                                   [this](const Group& group) { return !group.isSweep && isOpen(group.number); });
    append(name, request, open == groups_.end() ? newGroup(false, {}) : open->number);
    emit changed();
    startSoon();
}

void RunQueue::addSweep(const std::vector<std::pair<QString, SessionRequest>>& runs, const QString& trace) {
    const int group = newGroup(true, trace);
    for (const auto& [name, request] : runs) append(name, request, group);
    emit changed();
    startSoon();
}

void RunQueue::setHeld(bool held) {
    if (held_ == held) return;
    held_ = held;
    emit changed();
    startSoon();
}

void RunQueue::setStopsAtFailure(bool stops) {
    if (stopsAtFailure_ == stops) return;
    stopsAtFailure_ = stops;
    emit changed();
}

/// The place of the waiting run with which a move changes places.
std::optional<int> RunQueue::neighbour(int id, int by) const {
    const auto isWaiting = [this](int at) { return runs_[at].state == QueueState::Waiting; };
    int at = 0;
    while (at < int(runs_.size()) && runs_[at].id != id) ++at;
    if (at == int(runs_.size()) || !isWaiting(at)) return std::nullopt;
    const int direction = by < 0 ? -1 : 1;
    for (at += direction; at >= 0 && at < int(runs_.size()); at += direction)
        if (isWaiting(at)) return at;
    return std::nullopt;
}

bool RunQueue::canMove(int id, int by) const { return neighbour(id, by).has_value(); }

void RunQueue::move(int id, int by) {
    const auto other = neighbour(id, by);
    if (!other) return;
    std::swap(*findRun(id), runs_[*other]);
    emit changed();
}

void RunQueue::cancel(int id) {
    QueuedRun* run = findRun(id);
    if (!run) return;
    if (run->state == QueueState::Running) {
        cancelling_ = true;
        return controller_.stop();
    }
    if (run->state != QueueState::Waiting) return;
    run->state = QueueState::Cancelled;
    emit changed();
    endGroup(run->group);
}

void RunQueue::cancelAll() {
    std::vector<int> ids;
    for (const QueuedRun& run : runs_)
        if (run.state == QueueState::Waiting) ids.push_back(run.id);
    for (const int id : ids) cancel(id);
    if (runningId_ != 0) cancel(runningId_);
}

void RunQueue::remove(int id) {
    const QueuedRun* run = find(id);
    if (!run || run->state == QueueState::Running) return;
    if (run->state == QueueState::Waiting) cancel(id); // ends its group
    std::erase_if(runs_, [&](const QueuedRun& other) { return other.id == id; });
    emit changed();
}

void RunQueue::removeEnded() {
    std::erase_if(runs_, [](const QueuedRun& run) {
        return run.state != QueueState::Waiting && run.state != QueueState::Running;
    });
    emit changed();
}

/// Starts when all who listen to the controller know that the session before has ended.
void RunQueue::startSoon() {
    if (std::exchange(startAsked_, true)) return;
    QTimer::singleShot(0, this, [this] {
        startAsked_ = false;
        startNext();
    });
}

void RunQueue::startNext() {
    if (held_ || runningId_ != 0 || controller_.isActive()) return; // finished() or failed() will ask again
    const auto next =
        std::find_if(runs_.begin(), runs_.end(), [](const QueuedRun& run) { return run.state == QueueState::Waiting; });
    if (next != runs_.end()) start(*next);
}

void RunQueue::start(QueuedRun& run) {
    Group& group = groupOf(run);
    runningId_ = run.id;
    run.state = QueueState::Running;
    cancelling_ = false;
    if (group.trace.isEmpty()) {
        try {
            group.trace = SessionController::newTrace(group.isSweep ? "sweep" : "queue");
            group.made = true;
        } catch (const Error& error) {
            return end(QueueState::Failed, QString::fromStdString(oneLine(error)));
        }
    }
    SessionRequest request = run.request;
    request.tracePath = group.trace;
    emit starting();
    emit changed();
    controller_.start(request);
}

void RunQueue::end(QueueState state, const QString& sentence) {
    QueuedRun* run = findRun(std::exchange(runningId_, 0));
    const bool stoppedByOthers = state == QueueState::Cancelled && !std::exchange(cancelling_, false);
    if (waiting() > 0 && (stoppedByOthers || (run && state == QueueState::Failed && stopsAtFailure_))) held_ = true;
    if (run) {
        run->state = state;
        run->sentence = sentence;
        if (state == QueueState::Finished && run->key) groupOf(*run).finished.push_back(*run->key);
        endGroup(run->group);
    }
    emit changed();
    startSoon();
}

/// Tells that a sweep has ended, and removes the file of a group of which nothing was recorded.
void RunQueue::endGroup(int number) {
    if (isOpen(number)) return;
    const auto group =
        std::find_if(groups_.begin(), groups_.end(), [&](const Group& each) { return each.number == number; });
    if (group == groups_.end()) return;
    const Group ended = *group;
    groups_.erase(group);
    if (ended.made && QFileInfo(ended.trace).size() == 0) QFile::remove(ended.trace);
    // Told when the window knows that the last session has ended; otherwise it would say so over what is told here.
    if (ended.isSweep) QTimer::singleShot(0, this, [this, runs = ended.finished] { emit sweepEnded(runs); });
}

} // namespace kvscope::ui
