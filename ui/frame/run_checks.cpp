#include "ui/frame/run_checks.h"

#include "ui/frame/background_thread.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

namespace kvscope::ui {

namespace {

constexpr int kNice = 15; // views that read go first, and a session before both

bool grows(const OpenRun& run) {
    return run.live || run.row.status.text().empty() || (run.row.status == RunStatus::Running && !run.row.stale);
}

/// Null: the run cannot be read, which the views say, or nobody wants the answer any more.
std::shared_ptr<const RunCheck> test(const RunKey& key, const std::atomic<bool>& interrupt) {
    try {
        TraceReader reader(key.path.toStdString());
        reader.setInterrupt(&interrupt);
        CheckOptions options;
        options.examples = RunChecks::kExamples;
        auto result = std::make_shared<RunCheck>(checkRun(reader, key.runId, options));
        result->add(checkFile(reader, options));
        return result;
    } catch (const std::exception&) {
        return nullptr;
    }
}

} // namespace

/// The thread.
class RunChecks::Tester {
public:
    using Finished = std::function<void(quint64 asked, std::shared_ptr<const RunCheck> check)>;

    explicit Tester(Finished finished) : finished_(std::move(finished)), thread_([this] { work(); }) {}
    ~Tester() {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
            interrupt_ = true;
        }
        wake_.notify_all();
        thread_.join();
    }
    void ask(quint64 asked, const RunKey& key) {
        {
            const std::lock_guard lock(mutex_);
            queue_.emplace_front(asked, key);
        }
        wake_.notify_all();
    }
    void giveUp(quint64 asked) {
        const std::lock_guard lock(mutex_);
        std::erase_if(queue_, [asked](const auto& job) { return job.first == asked; });
        if (running_ == asked) interrupt_ = true;
    }

private:
    void work() {
        beginBackgroundThread("kvscope-check", kNice);
        for (;;) {
            std::pair<quint64, RunKey> job;
            {
                std::unique_lock lock(mutex_);
                wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
                if (stopping_) return;
                job = std::move(queue_.front());
                queue_.pop_front();
                running_ = job.first;
                interrupt_ = false;
            }
            std::shared_ptr<const RunCheck> check = test(job.second, interrupt_);
            {
                const std::lock_guard lock(mutex_);
                running_ = 0;
                if (stopping_) return;
            }
            finished_(job.first, std::move(check));
        }
    }

    Finished finished_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::pair<quint64, RunKey>> queue_;
    quint64 running_ = 0;
    bool stopping_ = false;
    std::atomic<bool> interrupt_{false};
    std::thread thread_; // last: it uses everything above
};

RunChecks::RunChecks(Workspace& workspace, std::function<void(const RunKey& key)> broken)
    : QObject(&workspace), workspace_(workspace), broken_(std::move(broken)),
      tester_(std::make_unique<Tester>([this](quint64 asked, std::shared_ptr<const RunCheck> check) {
          QMetaObject::invokeMethod(
              this, [this, asked, check = std::move(check)] { take(asked, check); }, Qt::QueuedConnection);
      })) {
    connect(&workspace, &Workspace::runsChanged, this, &RunChecks::follow);
    connect(&workspace, &Workspace::advanced, this, &RunChecks::follow);
}

RunChecks::~RunChecks() { tester_.reset(); }

RunChecks& RunChecks::of(const Workspace& workspace) {
    return *workspace.findChild<RunChecks*>(QString(), Qt::FindDirectChildrenOnly);
}

const RunCheck* RunChecks::find(const RunKey& key) const {
    const auto at =
        std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.key == key; });
    return at == entries_.end() ? nullptr : at->check.get();
}

std::int64_t RunChecks::violations(const RunKey& key) const {
    const RunCheck* check = find(key);
    return check == nullptr ? 0 : check->violations();
}

bool RunChecks::busy() const {
    return std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.asked != 0; });
}

void RunChecks::forget(const RunKey& key) {
    std::erase_if(entries_, [&](const Entry& entry) {
        if (!(entry.key == key)) return false;
        if (entry.asked != 0) tester_->giveUp(entry.asked);
        return true;
    });
}

/// Runs were opened, closed, or have ended.
void RunChecks::follow() {
    std::vector<RunKey> closed;
    for (const Entry& entry : entries_)
        if (workspace_.find(entry.key) == nullptr) closed.push_back(entry.key);
    for (const RunKey& key : closed) forget(key);
    for (const OpenRun& run : workspace_.runs()) {
        const bool known =
            std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.key == run.key; });
        if (known || grows(run)) continue;
        entries_.push_back({run.key, ++asked_, nullptr});
        tester_->ask(asked_, run.key);
    }
}

void RunChecks::take(quint64 asked, std::shared_ptr<const RunCheck> check) {
    const auto at =
        std::find_if(entries_.begin(), entries_.end(), [asked](const Entry& entry) { return entry.asked == asked; });
    if (at == entries_.end()) return; // closed meanwhile, or asked again
    at->asked = 0;
    at->check = std::move(check);
    const RunKey key = at->key;
    if (violations(key) > 0) broken_(key);
    emit changed();
}

} // namespace kvscope::ui
