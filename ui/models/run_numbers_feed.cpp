#include "ui/models/run_numbers_feed.h"

#include "base/error.h"

#include <QPointer>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

namespace kvscope::ui {

namespace {
constexpr int kStepsOfAnAsk = 8192; // takes a worker a few milliseconds, so that other reads need not wait
constexpr int kGrowthPauseMs = 500; // between two reads of a run that grows
} // namespace

RunNumbersFeed::RunNumbersFeed(Workspace& workspace, QObject* parent) : QObject(parent), workspace_(workspace) {
    growth_.setSingleShot(true);
    growth_.setInterval(kGrowthPauseMs);
    connect(&growth_, &QTimer::timeout, this, [this] {
        if (!asking_) askNext();
    });
    for (const auto signal : {&Workspace::runsChanged, &Workspace::advanced})
        connect(&workspace, signal, this, &RunNumbersFeed::follow);
}

void RunNumbersFeed::setActive(bool active) {
    active_ = active;
    if (active) follow();
}

const RunNumbersFeed::Entry* RunNumbersFeed::entryOf(const RunKey& key) const {
    const auto at = entries_.find({key.path, key.runId});
    return at == entries_.end() ? nullptr : &at->second;
}

const RunNumbers* RunNumbersFeed::find(const RunKey& key) const {
    const Entry* entry = entryOf(key);
    return entry && entry->any ? &entry->numbers : nullptr;
}

int RunNumbersFeed::waiting() const {
    const auto& runs = workspace_.runs();
    return int(std::count_if(runs.begin(), runs.end(), [this](const OpenRun& run) { return isMissing(run); }));
}

bool RunNumbersFeed::isMissing(const OpenRun& run) const {
    if (run.live && run.row.createdUtc.empty()) return false; // the row of the run is not there yet
    const Entry* entry = entryOf(run.key);
    if (!entry || entry->created != run.row.createdUtc) return true;
    return !entry->failed && (entry->steps != run.row.steps || entry->status != run.row.status);
}

RunNumbersFeed::Entry& RunNumbersFeed::entryFor(const OpenRun& run) {
    Entry& entry = entries_[{run.key.path, run.key.runId}];
    if (entry.created != run.row.createdUtc) entry = Entry{run.row.createdUtc}; // it is new, or its file was replaced
    return entry;
}

void RunNumbersFeed::follow() {
    std::set<Place> open;
    for (const OpenRun& run : workspace_.runs()) open.emplace(run.key.path, run.key.runId);
    std::erase_if(entries_, [&](const auto& entry) { return !open.contains(entry.first); });
    if (!active_ || asking_) return;
    const auto& runs = workspace_.runs();
    const bool isNew = std::any_of(runs.begin(), runs.end(),
                                   [this](const OpenRun& run) { return isMissing(run) && find(run.key) == nullptr; });
    if (isNew)
        askNext();
    else if (!growth_.isActive() && waiting() > 0)
        growth_.start();
}

void RunNumbersFeed::askNext() {
    asking_ = false;
    if (!active_) return;
    const auto& runs = workspace_.runs();
    const auto next = std::find_if(runs.begin(), runs.end(), [this](const OpenRun& run) { return isMissing(run); });
    if (next == runs.end()) return;
    asking_ = true;
    const OpenRun asked = *next;
    entryFor(asked).failed = true; // until an answer comes: a trace that cannot be opened gives none
    // Destroyed with the request, whether it was answered or not. An answer has asked for the next run already.
    const std::shared_ptr<void> turn(nullptr, [feed = QPointer(this), request = ++requests_](void*) {
        if (!feed) return;
        QMetaObject::invokeMethod(
            feed.data(),
            [feed, request] {
                if (feed && feed->asking_ && feed->requests_ == request) feed->askNext();
            },
            Qt::QueuedConnection);
    });
    workspace_.query<Answer>(
        this, "run numbers", asked.key,
        [row = asked.row, numbers = entryFor(asked).numbers](TraceReader& reader) {
            Answer answer{numbers, false, {}};
            try {
                answer.whole = extendRunNumbers(answer.numbers, reader, row, kStepsOfAnAsk);
            } catch (const Error& error) {
                if (error.kind == ErrorKind::Cancelled) throw;
                answer.problem = QString::fromStdString(oneLine(error)); // the views of the run say it
            }
            return answer;
        },
        [this, asked, turn](Answer answer) {
            take(asked, std::move(answer));
            askNext(); // before the request ends, so that the workspace stays busy between two runs
        });
}

void RunNumbersFeed::take(const OpenRun& asked, Answer answer) {
    const OpenRun* run = workspace_.find(asked.key);
    if (!run || run->row.createdUtc != asked.row.createdUtc) return;
    Entry& entry = entryFor(*run);
    entry.failed = !answer.problem.isEmpty();
    if (entry.failed) return;
    entry.numbers = std::move(answer.numbers);
    entry.any = true;
    if (answer.whole) {
        entry.steps = asked.row.steps;
        entry.status = asked.row.status;
    }
    emit read(asked.key);
}

} // namespace kvscope::ui
