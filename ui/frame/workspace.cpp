#include "ui/frame/workspace.h"

#include "base/error.h"
#include "ui/frame/background_thread.h"
#include "ui/frame/label_changes.h"
#include "ui/frame/run_checks.h"

#include <QDir>
#include <QElapsedTimer>
#include <QFileInfo>
#include <QTimer>

#include <algorithm>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

namespace kvscope::ui {

namespace {

constexpr int kWorkers = 2; // while one worker reads for long, the other answers a hover
// Least time between two refreshes of the views: the refreshes use cores that the engine needs too.
constexpr int kCoalesceMs = 250;
constexpr int kSlowestMs = 2000; // longest time between two refreshes, if many views are visible
constexpr double kShare = 0.018; // share of all cores that refreshes may use, with their reads
// Runs that another program records send no signal when they grow, so the workspace looks at them this often.
constexpr int kForeignPollMs = 300;
constexpr std::size_t kReadersKept = 4; // most traces that a worker keeps open
constexpr int kWorkerNice = 10;         // reads must not take CPU time from the engine

/// The CPU time of the calling thread in seconds.
double threadSeconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

QString normalised(const QString& path) { return QDir::cleanPath(QFileInfo(path).absoluteFilePath()); }

QString sentenceOf(const std::exception& failure) {
    if (const auto* error = dynamic_cast<const Error*>(&failure)) return QString::fromStdString(oneLine(*error));
    return QString::fromUtf8(failure.what());
}

/// The part of a read that a worker needs. Everything else about the read stays on the GUI thread.
struct Job {
    quint64 id = 0;
    QString path;
    // Generation of the file at `path`: a reader that was opened for an older generation is opened again.
    int generation = 0;
    std::shared_ptr<std::atomic<bool>> cancelled;
    std::function<void(TraceReader&)> read;
};

class ReaderPool {
public:
    /// Called on a worker thread at the end of every read, also of a cancelled one. `failure` is empty on success.
    using Finished = std::function<void(quint64 id, QString failure)>;

    /// One thread is enough where the system starts no more of them. @throws std::system_error where it starts none
    explicit ReaderPool(Finished finished) : finished_(std::move(finished)) {
        threads_.reserve(kWorkers);
        try {
            for (int i = 0; i < kWorkers; ++i) threads_.emplace_back([this] { work(); });
        } catch (const std::system_error&) {
            if (threads_.empty()) throw;
        }
    }
    ~ReaderPool() {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
            for (const auto& flag : running_) flag->store(true);
        }
        wake_.notify_all();
        for (std::thread& thread : threads_) thread.join();
    }
    void submit(Job job) {
        {
            const std::lock_guard lock(mutex_);
            queue_.push_back(std::move(job));
        }
        wake_.notify_one();
    }
    /// The CPU time of all reads so far in seconds.
    double seconds() const { return double(usedNs_.load()) * 1e-9; }

private:
    struct Opened {
        QString path;
        int generation = 0;
        std::unique_ptr<TraceReader> reader;
    };

    void work() {
        beginBackgroundThread("kvscope-reader", kWorkerNice); // bench/ui/live.cpp finds the threads by this name
        std::deque<Opened> readers;                           // last used first
        for (;;) {
            Job job;
            {
                std::unique_lock lock(mutex_);
                wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
                if (stopping_) return;
                job = std::move(queue_.front());
                queue_.pop_front();
                running_.push_back(job.cancelled);
            }
            QString failure;
            const double before = threadSeconds();
            if (!job.cancelled->load()) failure = run(readers, job);
            usedNs_ += std::int64_t((threadSeconds() - before) * 1e9);
            {
                const std::lock_guard lock(mutex_);
                std::erase(running_, job.cancelled);
                if (stopping_) return;
            }
            // Destroys what the function captured before the GUI thread gets the answer.
            job.read = nullptr;
            finished_(job.id, std::move(failure));
        }
    }

    static QString run(std::deque<Opened>& readers, const Job& job) {
        try {
            const auto at =
                std::find_if(readers.begin(), readers.end(), [&](const Opened& o) { return o.path == job.path; });
            if (at != readers.end() && at->generation == job.generation) {
                std::rotate(readers.begin(), at, at + 1);
            } else {
                if (at != readers.end()) readers.erase(at);
                readers.push_front({job.path, job.generation, std::make_unique<TraceReader>(job.path.toStdString())});
                if (readers.size() > kReadersKept) readers.pop_back();
            }
            TraceReader& reader = *readers.front().reader;
            reader.setInterrupt(job.cancelled.get());
            try {
                job.read(reader);
            } catch (...) {
                reader.setInterrupt(nullptr);
                throw;
            }
            reader.setInterrupt(nullptr);
            return {};
        } catch (const std::exception& failure) {
            return sentenceOf(failure);
        } catch (...) {
            return QStringLiteral("reading %1 failed for an unknown reason").arg(job.path);
        }
    }

    Finished finished_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<Job> queue_;
    std::vector<std::shared_ptr<std::atomic<bool>>> running_;
    std::vector<std::thread> threads_;
    bool stopping_ = false;
    std::atomic<std::int64_t> usedNs_{0};
};

} // namespace

struct Workspace::Impl {
    struct Request {
        QPointer<QObject> context;
        QObject* contextId = nullptr; // to compare contexts even after `context` was destroyed
        std::string slot;
        std::shared_ptr<std::atomic<bool>> cancelled;
        std::function<void()> done;
        std::function<void(const QString&)> refused; // null: Workspace::failed is emitted
        bool counted = true;                         // false: a refresh, which does not count as busy
    };

    explicit Impl(Workspace& owner) : w(owner) {}

    void submit(QObject* context, const char* slot, const QString& path, std::function<void(TraceReader&)> read,
                std::function<void()> done, std::function<void(const QString&)> refused, bool counted) {
        for (auto& [id, other] : requests)
            if (other.contextId == context && other.slot == slot && !other.cancelled->load())
                other.cancelled->store(true);
        Request request{
            context, context, slot, std::make_shared<std::atomic<bool>>(false), std::move(done), std::move(refused),
            counted};
        Job job{++lastId, path, generation[path], request.cancelled, std::move(read)};
        requests.emplace(job.id, std::move(request));
        if (counted && w.pending_++ == 0) emit w.busyChanged(true);
        pool->submit(std::move(job));
    }

    /// On the GUI thread: ends a request and calls what is to be called for it.
    void finish(quint64 id, const QString& failure) {
        const auto at = requests.find(id);
        if (at == requests.end()) return;
        const Request request = std::move(at->second);
        requests.erase(at);
        const bool wanted = request.context && !request.cancelled->load();
        if (wanted) {
            if (failure.isEmpty())
                request.done();
            else if (request.refused)
                request.refused(failure);
            else
                emit w.failed(failure);
        }
        // Counted down only after `done`. A `done` that asks for the next part then keeps the workspace busy without a
        // gap.
        if (request.counted && --w.pending_ == 0) emit w.busyChanged(false);
    }

    OpenRun* find(const RunKey& key) {
        const auto at = std::find_if(w.runs_.begin(), w.runs_.end(), [&](const OpenRun& r) { return r.key == key; });
        return at == w.runs_.end() ? nullptr : &*at;
    }

    /// To be called when another run is shown. A range of steps belongs to the run in which it was selected. It is
    /// removed, unless `keepRange` is set, because both runs are compared, and the shown run has these steps. The user
    /// has not moved the cursor, so the cursors of linked windows stay.
    void cursorIntoCurrent(bool keepRange) {
        Cursor wanted = w.cursor_;
        const OpenRun* run = w.current();
        if (!keepRange || !run || wanted.lastStep >= run->row.steps) wanted.firstStep = wanted.lastStep = -1;
        w.setCursor(wanted, CursorMove::Follow);
    }

    /// Reads the rows of runs that may still grow and tells the views what changed.
    void refresh() {
        if (refreshing) {
            refreshAgain = true;
            return;
        }
        std::map<QString, std::vector<int>> wanted;
        for (const OpenRun& run : w.runs_)
            if (run.live || run.row.status == RunStatus::Running || run.row.status.text().empty())
                wanted[run.key.path].push_back(run.key.runId);
        if (wanted.empty()) return;
        refreshing = int(wanted.size());
        for (auto& [path, ids] : wanted) {
            auto rows = std::make_shared<std::vector<RunRow>>();
            submit(
                &w, ("refresh " + path.toStdString()).c_str(), path,
                [rows, ids = ids](TraceReader& reader) {
                    for (const int id : ids)
                        if (auto row = reader.run(id)) rows->push_back(std::move(*row));
                },
                [this, path = path, rows] {
                    adopt(path, *rows);
                    refreshed();
                },
                // An error is not reported: the file of a live run may not contain the run's row yet, and if the file
                // has vanished, a view that reads it reports that.
                [this](const QString&) { refreshed(); }, false);
        }
    }
    void refreshed() {
        if (--refreshing > 0) return;
        refreshing = 0;
        if (std::exchange(refreshAgain, false)) schedule();
        updatePolling();
    }
    void adopt(const QString& path, const std::vector<RunRow>& rows) {
        bool shownChanged = false, listChanged = false;
        for (const RunRow& row : rows) {
            OpenRun* run = find({path, row.runId});
            if (!run) continue;
            const RunRow before = std::exchange(run->row, row);
            refuse(*run);
            // The requests of a serving run change without a new step; when something was written, its writer was busy.
            const bool served = row.serves() && before.writerBusyNs != row.writerBusyNs;
            const bool relabelled = before.name != row.name || before.meta != row.meta;
            if (!served && before.steps == row.steps && before.status == row.status && before.stale == row.stale &&
                before.droppedSteps == row.droppedSteps && !relabelled && before.layers == row.layers)
                continue;
            if (before.status != row.status || relabelled || before.stale != row.stale) listChanged = true;
            if (w.current_ == run->key || w.compares(run->key)) shownChanged = true;
        }
        if (listChanged) emit w.runsChanged();
        if (shownChanged) emit w.advanced();
    }

    /// Reads the rows of a trace again, because somebody has changed the labels of its runs.
    void reread(const QString& path) {
        if (std::none_of(w.runs_.begin(), w.runs_.end(), [&](const OpenRun& run) { return run.key.path == path; }))
            return;
        auto rows = std::make_shared<std::vector<RunRow>>();
        submit(
            &w, ("labels " + path.toStdString()).c_str(), path, [rows](TraceReader& reader) { *rows = reader.runs(); },
            [this, path, rows] { adopt(path, *rows); }, nullptr, true);
    }

    /// On the GUI thread: plans the next refresh, at least pauseMs after the last one.
    void schedule() {
        if (timer.isActive()) return;
        const qint64 since = sinceRefresh.isValid() ? sinceRefresh.elapsed() : pauseMs;
        timer.start(int(std::clamp<qint64>(pauseMs - since, 0, pauseMs)));
    }
    /// On the GUI thread, at every refresh: sets the pause until the next one. The more CPU time this thread and the
    /// readers have used since the last refresh, the longer the pause, so that many visible views take no more from the
    /// engine than one.
    void pace() {
        const double now = threadSeconds() + pool->seconds(), usedMs = (now - secondsAtRefresh) * 1e3;
        secondsAtRefresh = now;
        const double cores = std::max(1U, std::thread::hardware_concurrency());
        pauseMs = std::clamp(qint64(usedMs / (kShare * cores)), qint64(kCoalesceMs), qint64(kSlowestMs));
        sinceRefresh.start();
    }
    /// Marks what broken rules make worthless as not known; the views say so.
    void refuse(OpenRun& run) const {
        if (const RunCheck* check = checks->find(run.key)) run.row.knows = trusted(run.row.knows, *check);
    }
    void refuseBroken(const RunKey& key) {
        OpenRun* run = find(key);
        if (run == nullptr) return;
        refuse(*run);
        emit w.runsChanged();
        if (w.current_ == key) emit w.currentChanged(); // every view reads its numbers again
        if (w.compares(key)) emit w.compareChanged();
    }

    void updatePolling() {
        const bool foreign = std::any_of(w.runs_.begin(), w.runs_.end(), [](const OpenRun& r) {
            return !r.live && r.row.status == RunStatus::Running && !r.row.stale;
        });
        if (foreign && !poll.isActive()) poll.start(kForeignPollMs);
        if (!foreign) poll.stop();
    }
    void setRuns(const QString& path, const std::vector<RunRow>& rows) {
        for (const RunRow& row : rows) {
            const RunKey key{path, row.runId};
            if (OpenRun* run = find(key)) {
                run->row = row;
                checks->forget(key); // the file may be another one
                continue;
            }
            // Several files are read at the same time. Their runs are listed in the order in which the files were
            // opened.
            const auto after = std::find_if(w.runs_.begin(), w.runs_.end(), [&](const OpenRun& other) {
                return opened[other.key.path] > opened[path];
            });
            w.runs_.insert(after, {key, row, false});
        }
        updatePolling();
    }

    Workspace& w;
    std::map<quint64, Request> requests;
    std::map<QString, int> generation;
    std::map<QString, quint64> opened; // [path] the number of the call of open()
    quint64 lastOpened = 0, shownOpened = 0;
    quint64 lastId = 0;
    std::atomic<bool> advancedPosted{false};
    QTimer timer, poll;
    QElapsedTimer sinceRefresh;
    qint64 pauseMs = kCoalesceMs;
    double secondsAtRefresh = threadSeconds();
    int refreshing = 0;
    bool refreshAgain = false;
    std::unique_ptr<RunChecks> checks;
    std::unique_ptr<ReaderPool> pool; // last: joined before the rest goes
};

Workspace::Workspace(QObject* parent) : QObject(parent), impl_(std::make_unique<Impl>(*this)) {
    impl_->timer.setSingleShot(true);
    impl_->timer.setTimerType(Qt::PreciseTimer);
    connect(&impl_->timer, &QTimer::timeout, this, [this] {
        impl_->pace();
        impl_->refresh();
    });
    connect(&impl_->poll, &QTimer::timeout, this, [this] { impl_->schedule(); });
    connect(&LabelWatch::instance(), &LabelWatch::changed, this, [this](const QString& path) { impl_->reread(path); });
    impl_->checks = std::make_unique<RunChecks>(*this, [this](const RunKey& key) { impl_->refuseBroken(key); });
    impl_->pool = std::make_unique<ReaderPool>([this](quint64 id, QString failure) {
        QMetaObject::invokeMethod(
            this, [this, id, failure = std::move(failure)] { impl_->finish(id, failure); }, Qt::QueuedConnection);
    });
}

Workspace::~Workspace() {
    impl_->pool.reset();
    impl_->checks.reset();
}

void Workspace::open(const QString& path) {
    const QString file = normalised(path);
    ++impl_->generation[file]; // the file may have been replaced since it was last opened
    const quint64 turn = ++impl_->lastOpened;
    if (std::none_of(runs_.begin(), runs_.end(), [&](const OpenRun& run) { return run.key.path == file; }))
        impl_->opened[file] = turn;
    auto rows = std::make_shared<std::vector<RunRow>>();
    auto firstStep = std::make_shared<int>(0); // the first recorded step of the run that will be shown
    impl_->submit(
        this, ("open " + file.toStdString()).c_str(), file,
        [rows, firstStep](TraceReader& reader) {
            *rows = reader.runs();
            if (rows->empty() || rows->front().steps < 2) return;
            try {
                if (!reader.steps(rows->front().runId, 0, 0).empty()) return;
                const auto decode = reader.steps(rows->front().runId, 1, 1);
                if (!decode.empty()) *firstStep = decode.front().step;
            } catch (const Error& e) {
                // The run is opened even if its steps are damaged.
                if (e.kind == ErrorKind::Cancelled) throw;
            }
        },
        [this, file, rows, firstStep, turn] {
            if (rows->empty()) {
                emit openFailed(file, tr("%1 holds no run yet").arg(file));
                return;
            }
            impl_->setRuns(file, *rows);
            emit runsChanged();
            if (turn < impl_->shownOpened) return; // the file that was opened last is shown
            impl_->shownOpened = turn;
            setCurrent({file, rows->front().runId});
            if (cursor_.step >= *firstStep) return;
            // If the prefill was not recorded, the cursor moves to the first recorded step.
            Cursor cursor = cursor_;
            cursor.step = *firstStep;
            setCursor(cursor, CursorMove::Follow);
        },
        [this, file](const QString& sentence) { emit openFailed(file, sentence); }, true);
}

void Workspace::addLive(const RunKey& key, bool always) {
    const RunKey known{normalised(key.path), key.runId};
    const bool shows = always || !current_ || current_ == lastLive_;
    lastLive_ = known;
    impl_->opened.try_emplace(known.path, impl_->lastOpened + 1);
    ++impl_->lastOpened;
    if (shows) impl_->shownOpened = impl_->lastOpened;
    if (OpenRun* run = impl_->find(known)) {
        run->live = true;
    } else {
        OpenRun added{known, {}, true};
        added.row.runId = known.runId;
        added.row.status = RunStatus::Running;
        runs_.push_back(std::move(added));
    }
    emit runsChanged();
    if (shows) setCurrent(known);
    impl_->schedule();
}

void Workspace::finishLive(const RunKey& key) {
    OpenRun* run = impl_->find({normalised(key.path), key.runId});
    if (!run) return;
    run->live = false;
    // Until its row is read, the run counts as running: the refresh below and the polling then read the row.
    if (run->row.status.text().empty()) run->row.status = RunStatus::Running;
    // If the last row was read while the session still counted as live, no later refresh finds a change.
    const bool wasRead = run->row.status != RunStatus::Running;
    const bool shown = current_ == run->key || compares(run->key);
    emit runsChanged();
    if (wasRead && shown) emit advanced();
    impl_->schedule();
}

void Workspace::close(const RunKey& key) {
    const RunKey known{normalised(key.path), key.runId};
    const auto at = std::find_if(runs_.begin(), runs_.end(), [&](const OpenRun& r) { return r.key == known; });
    if (at == runs_.end()) return;
    const auto index = std::size_t(at - runs_.begin());
    runs_.erase(at);
    const bool wasCurrent = current_ == known, wasCompared = std::erase(compared_, known) > 0;
    if (wasCurrent) {
        current_.reset();
        if (!runs_.empty()) current_ = runs_[std::min(index, runs_.size() - 1)].key;
        if (current_) std::erase(compared_, *current_);
    }
    impl_->updatePolling();
    emit runsChanged();
    if (wasCurrent) {
        impl_->cursorIntoCurrent(false);
        emit currentChanged();
    }
    if (wasCompared || wasCurrent) emit compareChanged();
}

const OpenRun* Workspace::find(const RunKey& key) const { return impl_->find({normalised(key.path), key.runId}); }
const OpenRun* Workspace::current() const { return current_ ? impl_->find(*current_) : nullptr; }
const OpenRun* Workspace::compare() const { return compared_.empty() ? nullptr : impl_->find(compared_.front()); }
bool Workspace::compares(const RunKey& key) const {
    return std::find(compared_.begin(), compared_.end(), key) != compared_.end();
}

std::vector<const OpenRun*> Workspace::sides() const {
    std::vector<const OpenRun*> runs;
    if (!current_) return runs;
    runs.push_back(impl_->find(*current_));
    for (const RunKey& key : compared_) runs.push_back(impl_->find(key));
    return runs;
}

void Workspace::setCurrent(const RunKey& key) {
    const OpenRun* run = find(key);
    if (!run) return;
    if (current_ == run->key) return setCursor(cursor_); // clamps: the run may have been replaced by a shorter one
    const auto place = std::find(compared_.begin(), compared_.end(), run->key);
    const bool exchanges = place != compared_.end(); // with the current run, which a compared run implies
    if (exchanges) *place = *current_;
    current_ = run->key;
    impl_->cursorIntoCurrent(exchanges);
    emit currentChanged();
    if (exchanges) emit compareChanged();
}

void Workspace::setCompare(std::optional<RunKey> key) {
    std::vector<RunKey> wanted;
    if (key)
        if (const OpenRun* run = find(*key); run && current_ != run->key) wanted.push_back(run->key);
    if (wanted == compared_) return;
    compared_ = std::move(wanted);
    emit compareChanged();
}

void Workspace::setCompared(const RunKey& key, bool compared) {
    const OpenRun* run = find(key);
    if (!run || current_ == run->key || compares(run->key) == compared) return;
    if (compared)
        compared_.push_back(run->key);
    else
        std::erase(compared_, run->key);
    emit compareChanged();
}

void Workspace::setCursor(const Cursor& cursor, CursorMove by) {
    Cursor wanted = cursor;
    const OpenRun* run = current();
    const auto clampTo = [](int& value, int count) { value = std::clamp(value, 0, std::max(count - 1, 0)); };
    if (run && run->row.layers > 0) {                 // without its row, a live run gives nothing to clamp to
        if (run->row.steps > 0 || !run->row.serves()) // iterations count as steps, which were perhaps not recorded
            clampTo(wanted.step, run->row.steps);
        wanted.step = std::max(wanted.step, 0);
        clampTo(wanted.layer, run->row.layers);
        clampTo(wanted.kvHead, run->row.kvHeads);
        clampTo(wanted.sequence, run->row.sequences);
        if (wanted.firstStep >= 0 && wanted.lastStep >= 0) {
            if (wanted.firstStep > wanted.lastStep) std::swap(wanted.firstStep, wanted.lastStep);
            if (wanted.firstStep >= run->row.steps) wanted.firstStep = -1;
            clampTo(wanted.lastStep, run->row.steps);
        }
    } else {
        for (int* value : {&wanted.step, &wanted.layer, &wanted.kvHead, &wanted.sequence}) *value = std::max(*value, 0);
    }
    if (wanted.firstStep < 0 || wanted.lastStep < 0) wanted.firstStep = wanted.lastStep = -1;
    wanted.block = std::max(wanted.block, -1);
    if (wanted == cursor_) return;
    cursor_ = wanted;
    lastMove_ = by;
    emit cursorChanged();
}

void Workspace::setSoughtText(const QString& text) {
    if (text == soughtText_) return;
    soughtText_ = text;
    emit soughtTextChanged();
}

void Workspace::setFilter(const Filter& filter) {
    if (filter == filter_) return;
    filter_ = filter;
    emit filterChanged();
}

void Workspace::traceAdvanced() {
    if (impl_->advancedPosted.exchange(true)) return;
    QMetaObject::invokeMethod(
        this,
        [this] {
            impl_->advancedPosted.store(false);
            impl_->schedule();
        },
        Qt::QueuedConnection);
}

void Workspace::submit(QObject* context, const char* slot, const RunKey& key, std::function<void(TraceReader&)> read,
                       std::function<void()> done) {
    impl_->submit(context, slot, normalised(key.path), std::move(read), std::move(done), nullptr, true);
}

} // namespace kvscope::ui
