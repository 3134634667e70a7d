#include "ui/session/session_controller.h"

#include "core/model/mapped_watch.h"
#include "core/trace/needles.h"
#include "core/trace/run_meta.h"
#include "profiler/run/recorded_session.h"
#include "ui/frame/workspace.h"

#include <QDateTime>
#include <QDir>
#include <QFile>
#include <QFileInfo>
#include <QStandardPaths>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace kvscope::ui {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kProgressInterval = std::chrono::milliseconds(100);
constexpr auto kLookInterval = std::chrono::milliseconds(250); // between two checks of the recording

/// Names, sizes and times of the files that the model may have been read from: another text once one of them is
/// written, replaced or deleted. Empty: a model that comes with the program.
QString stampOf(const Model& model) {
    if (model.embedded()) return {};
    const QFileInfo given(QString::fromStdString(model.path()));
    const QDir folder = given.isDir() ? QDir(given.filePath()) : given.dir();
    const QStringList read{QStringLiteral("*.json"), QStringLiteral("*.safetensors"), QStringLiteral("*.gguf"),
                           QStringLiteral("*.jinja"), QStringLiteral("*.model")};
    QStringList stamps;
    for (const QFileInfo& file : folder.entryInfoList(read, QDir::Files | QDir::Hidden, QDir::Name))
        stamps << QStringLiteral("%1 %2 %3")
                      .arg(file.fileName())
                      .arg(file.size())
                      .arg(file.lastModified().toMSecsSinceEpoch());
    return stamps.join(QLatin1Char('\n'));
}

/// The file of a new trace. It goes again where no run was begun in it, e.g. because the disk is full.
class NewTrace {
public:
    explicit NewTrace(const std::string& what) : path_(SessionController::newTrace(what)) {}
    ~NewTrace() {
        if (holdsRun_) return;
        for (const char* suffix : {"", "-wal", "-shm"}) QFile::remove(path_ + QLatin1String(suffix));
    }
    NewTrace(const NewTrace&) = delete;
    NewTrace& operator=(const NewTrace&) = delete;
    const QString& path() const { return path_; }
    void holdsRun() { holdsRun_ = true; }

private:
    QString path_;
    bool holdsRun_ = false;
};

} // namespace

struct SessionController::Impl {
    /// A task for the worker. `run` is called on the worker and returns what the GUI thread must do afterwards.
    struct Job {
        bool isSession = false;
        // Whether stop() leaves the job in the queue. True for a model that was requested while a session runs, and for
        // a model that is loaded already (adoptModel).
        bool outlivesStop = false;
        std::function<std::function<void()>(const std::stop_token&)> run;
    };

    Impl(SessionController& controller, Workspace& runs) : owner(controller), workspace(runs) {
        worker = std::jthread([this](std::stop_token stop) { work(stop); });
    }
    ~Impl() {
        worker.request_stop();
        const std::lock_guard lock(mutex);
        jobs.clear();
        current.request_stop();
    }

    SessionController& owner;
    Workspace& workspace;

    // Used on the GUI thread only:
    State state = State::Idle;
    std::shared_ptr<const Model> shown; // the model loaded last
    bool sessionActive = false;         // from start() to finished() or failed()

    std::mutex mutex; // guards the members from here to stepsAllowed
    std::condition_variable_any wake;
    std::deque<Job> jobs;
    bool busy = false;
    std::stop_source current; // stops the running job
    bool paused = false;
    int stepsAllowed = 0;
    // Used on the worker only:
    QString cachedName, cachedStamp;
    std::shared_ptr<const Model> cached;

    std::jthread worker; // last member: the worker uses all others

    /// Runs `action` later on the GUI thread, unless the controller is destroyed before.
    template <class Action> void post(Action&& action) {
        QMetaObject::invokeMethod(&owner, std::forward<Action>(action), Qt::QueuedConnection);
    }
    void setState(State next) {
        if (state == next) return;
        state = next;
        emit owner.stateChanged();
    }
    void postState(State next) {
        post([this, next] { setState(next); });
    }
    /// On the GUI thread: the state becomes Idle unless another job waits. A job that has just begun posts its own
    /// state afterwards.
    void becomeIdle() {
        {
            const std::lock_guard lock(mutex);
            if (!jobs.empty()) return;
        }
        setState(State::Idle);
    }

    void enqueue(Job job) {
        {
            const std::lock_guard lock(mutex);
            jobs.push_back(std::move(job));
        }
        wake.notify_all();
    }

    void work(const std::stop_token& quit) {
        for (;;) {
            Job job;
            std::stop_token token;
            {
                std::unique_lock lock(mutex);
                if (!wake.wait(lock, quit, [this] { return !jobs.empty(); })) return;
                if (quit.stop_requested()) return;
                job = std::move(jobs.front());
                jobs.pop_front();
                busy = true;
                current = std::stop_source();
                token = current.get_token();
            }
            std::function<void()> completion = job.run(token);
            {
                const std::lock_guard lock(mutex);
                // Set before the completion runs. Otherwise stop() would wait for a job that has ended.
                busy = false;
            }
            post(std::move(completion));
        }
    }

    /// A callback that reports progress at most every kProgressInterval.
    Progress progressReporter() {
        return [this, last = Clock::time_point()](double fraction, std::string_view what) mutable {
            const auto now = Clock::now();
            if (fraction > 0 && fraction < 1 && now - last < kProgressInterval) return;
            last = now;
            post([this, fraction, text = QString::fromUtf8(what.data(), qsizetype(what.size()))] {
                emit owner.progress(fraction, text);
            });
        };
    }

    /// On the worker: returns the model, which is loaded unless it is the model loaded last and no file of it has
    /// changed since. announce: it becomes the model that the controller shows. @throws Error
    std::shared_ptr<const Model> obtainModel(const QString& name, const std::stop_token& stop, bool announce = true) {
        if (cached && cachedName == name && cachedStamp == stampOf(*cached) && fileWrittenSince(*cached).empty())
            return cached;
        cached = Model::load(name.toStdString(), progressReporter(), stop);
        cachedName = name;
        cachedStamp = stampOf(*cached);
        if (!announce) return cached;
        post([this, model = cached, name] {
            shown = model;
            emit owner.modelLoaded(name);
        });
        return cached;
    }

    std::function<void()> loadJob(const QString& name, const std::stop_token& stop) {
        postState(State::Loading);
        QString sentence;
        try {
            const auto before = cached;
            const auto model = obtainModel(name, stop);
            if (model == before)
                post([this, model, name] {
                    shown = model;
                    emit owner.modelLoaded(name);
                });
        } catch (const Error& error) {
            if (error.kind != ErrorKind::Cancelled) sentence = QString::fromStdString(oneLine(error));
        } catch (const std::exception& error) {
            sentence = QString::fromStdString("loading " + name.toStdString() + ": " + error.what());
        }
        return [this, sentence] {
            becomeIdle();
            if (!sentence.isEmpty()) emit owner.failed(sentence);
        };
    }

    std::function<void()> sessionJob(const SessionRequest& request, const std::stop_token& stop) {
        postState(State::Loading);
        QString sentence;
        bool completed = false;
        std::optional<RunKey> key;
        try {
            completed = runSession(request, stop, key);
        } catch (const Error& error) {
            if (error.kind != ErrorKind::Cancelled) sentence = QString::fromStdString(oneLine(error));
        } catch (const std::bad_alloc&) {
            sentence = QStringLiteral(
                "not enough memory for this session; lower the prompt length or the number of sequences");
        } catch (const std::exception& error) {
            sentence = QStringLiteral("the session ended: %1").arg(QString::fromUtf8(error.what()));
        }
        return [this, key, sentence, completed] {
            if (key) workspace.finishLive(*key);
            sessionActive = false;
            becomeIdle();
            if (sentence.isEmpty())
                emit owner.finished(completed);
            else
                emit owner.failed(sentence);
        };
    }

    /// What a session needs that is found on the worker.
    struct Prepared {
        std::shared_ptr<const Model> model;
        std::vector<std::vector<std::int32_t>> prompts;
        SessionOptions options;
        RecordLevel level = RecordLevel::Full;
    };

    Prepared prepare(const SessionRequest& request, const std::stop_token& stop) {
        if (request.fork) return prepareFork(request, stop);
        Prepared session{obtainModel(request.model, stop, !request.inBackground), {}, request.options, request.level};
        const Tokenizer& tokenizer = session.model->tokenizer();
        post([this] { emit owner.progress(0, QStringLiteral("preparing the prompt")); });
        if (request.source) {
            std::vector<NeedlePlace> needles;
            session.prompts = request.source->ids(*session.model, stop, &needles);
            if (!needles.empty()) session.options.meta.emplace_back(run_meta::kNeedles, needlesJson(needles));
        } else {
            for (const QString& text : request.prompts) session.prompts.push_back(tokenizer.encode(text.toStdString()));
        }
        return session;
    }

    Prepared prepareFork(const SessionRequest& request, const std::stop_token& stop) {
        const TraceReader reader(request.fork->key.path.toStdString());
        Fork fork = planFork(reader, request.fork->key.runId, request.fork->step, request.fork->change, false);
        fork.options.threads = fork.recorded.options.threads = 0; // all cores
        fork.options.recordModelPath = request.options.recordModelPath;
        const auto model = obtainModel(QString::fromStdString(fork.recorded.model), stop);
        requireRecordedModel(fork.recorded, *model);
        postState(State::Prefill);
        checkRestored(fork, model, progressReporter(), stop);
        return {model, fork.text.prompts, fork.options, fork.recorded.level};
    }

    /// On the worker: runs a session. @return false if the user stopped the session
    bool runSession(const SessionRequest& request, const std::stop_token& stop, std::optional<RunKey>& key) {
        Prepared session = prepare(request, stop);
        std::optional<NewTrace> made; // ends after the recording
        if (request.tracePath.isEmpty()) made.emplace((request.fork ? "fork-" : "") + session.options.method);
        const QString path = made ? made->path() : request.tracePath;
        RecordingRequest recording;
        recording.trace = path.toStdString();
        recording.level = session.level;
        recording.kernels = request.recordGpu;
        recording.calls = request.recordCalls;
        recording.pcie = request.pcieCounting;
        recording.onCommit = [this](std::int64_t) { workspace.traceAdvanced(); };
        RecordedSession run(session.options, recording);
        const auto remark = [this](const QString& sentence) {
            post([this, sentence] { emit owner.remark(sentence); });
        };
        if (const std::string refusal = run.recording().kernelRefusal(); !refusal.empty())
            remark(QStringLiteral("GPU kernels are not recorded: %1").arg(QString::fromStdString(refusal)));
        run.begin(session.model, std::move(session.prompts));
        // The run must be in the file before the workspace opens the file.
        run.recording().flush();
        Follower follower{*this, run.recording(), stop};
        if (run.recording().runId() == 0) follower.look(); // before a long prompt is read
        if (made) made->holdsRun();
        key = RunKey{path, run.recording().runId()};
        post([this, live = *key, always = !request.inBackground] {
            workspace.addLive(live, always);
            emit owner.began(live);
        });

        postState(State::Prefill);
        const bool completed = run.run(progressReporter(), stop, [&](const DecodeSession& decoding) {
            if (!follower.decodes) {
                if (const std::string why = run.recording().pcieRemark(); !why.empty())
                    remark(QString::fromStdString(why));
                postState(State::Decoding);
            }
            return follower.next(decoding.finished());
        });
        run.recording().flush();
        follower.look(); // the run's end may have found no room
        return completed;
    }

    /// Is asked between the steps of a session on the worker whether the session goes on: handles pauses, single steps
    /// and stops, and ends the session if recording has failed, e.g. on a full disk.
    struct Follower {
        Impl& impl;
        RunRecording& recording;
        const std::stop_token& stop;
        bool decodes = false; // whether the prompts were read and decoding has begun
        Clock::time_point lastLooked = {};

        /// Called when the prompts were read and after every step.
        RecordedSession::Go next(bool finished) {
            if (!decodes || finished || Clock::now() - lastLooked >= kLookInterval) look();
            decodes = true;
            const auto settle = [this] {
                look();
                recording.flush();
            };
            const bool goesOn = finished || impl.waitWhilePaused(stop, settle);
            return goesOn ? RecordedSession::Go::On : RecordedSession::Go::Stop;
        }
        /// Checks the recording. @throws Error(Storage) if recording has stopped
        void look() {
            lastLooked = Clock::now();
            const RecorderHealth health = recording.health();
            if (!health.error.empty())
                throw Error(ErrorKind::Storage, "recording stopped: " + health.error,
                            health.whatIsLeft() + "; remove the cause and run again");
        }
    };

    /// Waits while the session is paused. `settle` runs once before the waiting begins. @return false if a stop was
    /// requested
    template <class Settle> bool waitWhilePaused(const std::stop_token& stop, Settle&& settle) {
        std::unique_lock lock(mutex);
        if (stop.stop_requested()) return false;
        if (!paused) return true;
        if (stepsAllowed == 0) {
            lock.unlock();
            settle();
            postState(State::Paused);
            lock.lock();
            if (!wake.wait(lock, stop, [this] { return !paused || stepsAllowed > 0; })) return false;
        }
        if (!paused)
            postState(State::Decoding);
        else
            --stepsAllowed;
        return !stop.stop_requested();
    }
};

SessionController::SessionController(Workspace& workspace, QObject* parent)
    : QObject(parent), impl_(std::make_unique<Impl>(*this, workspace)) {}

SessionController::~SessionController() = default;

SessionController::State SessionController::state() const { return impl_->state; }

bool SessionController::isActive() const { return impl_->sessionActive; }

std::shared_ptr<const Model> SessionController::model() const { return impl_->shown; }

void SessionController::loadModel(const QString& nameOrPath) {
    // While a session runs, the state changes when the job begins, after the session.
    if (!impl_->sessionActive) impl_->setState(State::Loading);
    impl_->enqueue({.outlivesStop = impl_->sessionActive, .run = [this, nameOrPath](const std::stop_token& stop) {
                        return impl_->loadJob(nameOrPath, stop);
                    }});
}

void SessionController::adoptModel(const QString& nameOrPath, std::shared_ptr<const Model> model) {
    if (!impl_->sessionActive) impl_->setState(State::Loading);
    const auto adopt = [this, nameOrPath, model = std::move(model)](const std::stop_token& stop) {
        impl_->cached = model;
        impl_->cachedName = nameOrPath;
        impl_->cachedStamp = stampOf(*model);
        return impl_->loadJob(nameOrPath, stop);
    };
    impl_->enqueue({.outlivesStop = true, .run = adopt});
}

void SessionController::start(const SessionRequest& request) {
    if (impl_->sessionActive) return;
    impl_->sessionActive = true;
    {
        const std::lock_guard lock(impl_->mutex);
        impl_->paused = request.startPaused;
        impl_->stepsAllowed = 0;
    }
    impl_->setState(State::Loading);
    impl_->enqueue({.isSession = true,
                    .run = [this, request](const std::stop_token& stop) { return impl_->sessionJob(request, stop); }});
}

void SessionController::pause() {
    const std::lock_guard lock(impl_->mutex);
    impl_->paused = true;
}

void SessionController::resume() {
    {
        const std::lock_guard lock(impl_->mutex);
        impl_->paused = false;
        impl_->stepsAllowed = 0;
    }
    impl_->wake.notify_all();
}

void SessionController::stepOnce() {
    {
        const std::lock_guard lock(impl_->mutex);
        if (impl_->paused) ++impl_->stepsAllowed;
        impl_->paused = true; // a running session finishes its step and waits
    }
    impl_->wake.notify_all();
}

void SessionController::stop() {
    bool droppedSession = false; // a session was removed that had not begun
    bool running = false;
    {
        const std::lock_guard lock(impl_->mutex);
        for (const Impl::Job& job : impl_->jobs) droppedSession = droppedSession || job.isSession;
        std::erase_if(impl_->jobs, [](const Impl::Job& job) { return !job.outlivesStop; });
        impl_->current.request_stop();
        running = impl_->busy;
    }
    if (!running) impl_->setState(State::Idle); // if a job runs, it sets the state when it ends
    if (droppedSession) {
        impl_->sessionActive = false;
        emit finished(false);
    }
}

QString SessionController::tracesFolder() {
    const QDir data(QStandardPaths::writableLocation(QStandardPaths::AppDataLocation));
    data.mkpath(QStringLiteral("traces"));
    return data.filePath(QStringLiteral("traces"));
}

QString SessionController::newTrace(const std::string& what) {
    const QDir folder(tracesFolder());
    if (!folder.exists())
        throw Error(ErrorKind::Storage,
                    "the folder for what is recorded, " + folder.path().toStdString() + ", cannot be made",
                    "make the folders above it writable, or make room there");
    const QString stem = QDateTime::currentDateTimeUtc().toString(QStringLiteral("yyyyMMdd-HHmmss")) +
                         QLatin1Char('-') + QString::fromStdString(what);
    for (int number = 1;; ++number) {
        const QString name = number == 1 ? stem : QStringLiteral("%1-%2").arg(stem).arg(number);
        QFile file(folder.filePath(name + QStringLiteral(".kvtrace")));
        if (file.open(QIODevice::WriteOnly | QIODevice::NewOnly) || !file.exists())
            return file.fileName(); // if no file can be made, the recorder reports why
    }
}

} // namespace kvscope::ui
