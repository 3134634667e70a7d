#include "profiler/record/recorder.h"

#include "base/error.h"
#include "profiler/store/trace_store.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <variant>

namespace kvscope {
namespace {

using Clock = std::chrono::steady_clock;

// The engine never wakes the writer for a step (that would be a system call per step); the writer looks by itself. It
// commits at least every kCommitInterval plus one look, far inside the promise that a killed process loses at most the
// last second.
constexpr auto kLookInterval = std::chrono::milliseconds(50);
constexpr auto kCommitInterval = std::chrono::milliseconds(100);
constexpr auto kLongestTransaction = std::chrono::milliseconds(250);
constexpr auto kHeartbeat = std::chrono::seconds(1);
constexpr std::size_t kSpareRecords = 256;

/// CPU time of the calling thread: what recording takes from the engine, and not what others took from the recorder.
std::int64_t threadCpuNs() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return std::int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

std::size_t bytesOf(const std::vector<SpanRecord>& spans) {
    std::size_t bytes = 0;
    for (const SpanRecord& span : spans) bytes += sizeof span + span.track.size() + span.name.size();
    return bytes;
}

std::size_t bytesOf(const StepRecord& record) {
    std::size_t bytes =
        sizeof record + record.layers.size() * sizeof(LayerRecord) +
        record.selections.size() * sizeof(SelectionRecord) + record.blocks.size() * sizeof(PackedBlock) +
        record.scores.size() * sizeof(float) + record.denoise.forwards.size() * sizeof(DenoiseForward) +
        record.denoise.tokens.size() * sizeof(DenoiseToken) + record.denoise.layers.size() * sizeof(DenoiseLayer) +
        (record.denoise.changes.size() + record.denoise.kvChanges.size() + record.denoise.rowDensities.size()) *
            sizeof(float) +
        record.fed.size() * sizeof(FedPosition);
    for (const TokenRecord& token : record.generated) bytes += sizeof token + token.bytes.size();
    return bytes + bytesOf(record.spans);
}

std::size_t bytesOf(const ServingRecord& record) {
    std::size_t bytes = record.spans.size() * sizeof(RequestSpan) + record.events.size() * sizeof(RowEvent);
    for (const ServedRequest& request : record.requests) bytes += sizeof request + request.reason.size();
    for (const ServingIteration& iteration : record.iterations)
        bytes += sizeof iteration + iteration.members.size() * sizeof(IterationMember);
    return bytes;
}

std::size_t bytesOf(const RunEvent& event) {
    if (const auto* step = std::get_if<std::unique_ptr<StepRecord>>(&event)) return bytesOf(**step);
    if (const auto* spans = std::get_if<std::vector<SpanRecord>>(&event)) return bytesOf(*spans);
    if (const auto* remark = std::get_if<Remark>(&event)) return sizeof *remark + remark->sentence.size();
    if (const auto* serving = std::get_if<std::unique_ptr<ServingRecord>>(&event)) return bytesOf(**serving);
    std::size_t bytes = 0;
    for (const CounterSample& sample : std::get<std::vector<CounterSample>>(event))
        bytes += sizeof sample + sample.track.size();
    return bytes;
}

std::size_t bytesOf(const EngineEvent& event) {
    if (const auto* samples = std::get_if<std::vector<HeldValue>>(&event)) {
        std::size_t bytes = 0;
        for (const HeldValue& sample : *samples) bytes += sizeof sample + sample.track.size();
        return bytes;
    }
    if (const auto* samples = std::get_if<std::vector<CounterSample>>(&event)) {
        std::size_t bytes = 0;
        for (const CounterSample& sample : *samples) bytes += sizeof sample + sample.track.size();
        return bytes;
    }
    if (const auto* spans = std::get_if<std::vector<EngineSpan>>(&event)) {
        std::size_t bytes = 0;
        for (const EngineSpan& of : *spans)
            bytes += sizeof of + of.span.track.size() + of.span.name.size() + of.category.size() + of.args.size();
        return bytes;
    }
    if (const auto* request = std::get_if<EngineRequest>(&event))
        return sizeof *request + request->externalId.size() + request->request.kind.size() +
               request->request.reason.size() + request->spans.size() * sizeof(RequestSpan);
    if (const auto* row = std::get_if<MetaRow>(&event)) return sizeof *row + row->key.size() + row->value.size();
    return sizeof(EngineFlow);
}

std::string sentenceOf(const std::exception& trouble) {
    const auto* known = dynamic_cast<const Error*>(&trouble);
    return known ? oneLine(*known) : trouble.what();
}

struct Begin {
    std::unique_ptr<RunInfo> info;
};
struct End {
    RunStatus status = RunStatus::Running;
    std::string text;
};
struct Message {
    std::variant<RunEvent, Begin, End, std::vector<ClockReading>, EngineEvent> what;
    std::size_t bytes = 0; // of an event
};

} // namespace

struct Recorder::Impl {
    Impl(const std::string& path, RecorderOptions recorderOptions)
        : options(std::move(recorderOptions)), store(path, options.overwrite) {
        writer = std::jthread([this] { writeLoop(); });
    }

    void writeLoop();
    /// Waits until everything that was handed over is in the file. `lock` has the mutex before and after.
    void flush(std::unique_lock<std::mutex>& lock);
    void handle(RunEvent& event);
    void handle(Begin& message);
    void handle(const End& message);
    void handle(const std::vector<ClockReading>& readings);
    void handle(const EngineEvent& event);
    void write(const RunEvent& event);
    void commit();
    void beat(bool always);
    void lookForFile();
    void tellFailure();
    void measureFile();
    void fail(const std::exception& trouble);
    void fail(const std::string& sentence, const TraceStore::Loss& loss);
    void post(Message message, std::unique_lock<std::mutex>& lock);
    void takeStep(RunEvent step); // an event that holds a step
    void keepSpare(std::unique_ptr<StepRecord> record);

    const RecorderOptions options;
    TraceStore store; // the writer thread's, once that runs

    mutable std::mutex mutex; // guards everything down to the blank line; held for a few instructions at a time
    std::condition_variable wake, done;
    std::deque<Message> queue;
    std::size_t queuedBytes = 0;
    std::vector<std::unique_ptr<StepRecord>> spare;
    std::exception_ptr beginError;
    RecorderHealth health;
    bool running = false; // between beginRun and endRun, as the engine sees it
    bool urgent = false;  // something waits for the writer
    bool closing = false;
    std::int64_t flushAsked = 0, flushDone = 0, beginsAsked = 0, beginsDone = 0;
    int run = 0;

    // Writer thread only.
    bool failed = false;
    bool told = false;      // the trace says that it failed
    bool recording = false; // a run is open in the store
    bool ended = false;     // the run has ended before the engine ended it: the file is full
    Clock::time_point transactionStart, lastBeat;
    std::int64_t busyAtBegin = 0; // threadCpuNs when the run began
    std::int64_t stepsPending = 0, revision = 0;

    std::jthread writer; // last: it uses all of the above
};

void Recorder::Impl::writeLoop() {
    std::deque<Message> batch;
    for (bool last = false; !last;) {
        std::int64_t flushTicket = 0;
        bool hurry = false;
        {
            std::unique_lock lock(mutex);
            const auto called = [this] { return urgent || closing; };
            if (running)
                wake.wait_for(lock, kLookInterval, called);
            else
                wake.wait(lock, called);
            batch.swap(queue);
            last = closing;
            hurry = urgent || closing;
            urgent = false;
            flushTicket = flushAsked;
        }
        for (Message& message : batch) {
            std::visit([this](auto& what) { handle(what); }, message.what);
            const std::lock_guard lock(mutex);
            queuedBytes -= message.bytes;
            if (auto* event = std::get_if<RunEvent>(&message.what))
                if (auto* step = std::get_if<std::unique_ptr<StepRecord>>(event)) keepSpare(std::move(*step));
        }
        batch.clear();
        if (!failed && store.hasPending() && (hurry || Clock::now() - transactionStart >= kCommitInterval)) commit();
        beat(false);
        const std::lock_guard lock(mutex);
        if (recording) health.writerBusyNs = threadCpuNs() - busyAtBegin;
        flushDone = flushTicket;
        if (hurry) done.notify_all();
    }
    store.finish();
    if (failed && !told) { // the log is in the file now, which may have made room
        tellFailure();
        store.finish();
    }
}

void Recorder::Impl::flush(std::unique_lock<std::mutex>& lock) {
    const std::int64_t ticket = ++flushAsked;
    urgent = true;
    wake.notify_one();
    done.wait(lock, [&] { return flushDone >= ticket; });
}

/// Keeps the record for a later step of the engine. Call it with the mutex held.
void Recorder::Impl::keepSpare(std::unique_ptr<StepRecord> record) {
    if (record && spare.size() < kSpareRecords) spare.push_back(std::move(record));
}

/// Writes into the trace that its recording failed, where there is room for that much.
void Recorder::Impl::tellFailure() {
    RecorderHealth now;
    {
        const std::lock_guard lock(mutex);
        now = health;
    }
    try {
        store.setHealth(now.droppedSteps, now.writerBusyNs, now.error);
        store.endRun(RunStatus::Failed, now.error);
        store.commit();
        told = true;
    } catch (const Error&) {
        store.rollback();
    }
}

void Recorder::Impl::handle(RunEvent& event) {
    const bool isStep = std::holds_alternative<std::unique_ptr<StepRecord>>(event);
    if ((failed || ended) && isStep) {
        const std::lock_guard lock(mutex);
        ++health.droppedSteps;
    }
    if (failed || ended || (!isStep && !recording)) return;
    try {
        if (!store.hasPending()) transactionStart = Clock::now();
        if (isStep) ++stepsPending;
        write(event);
    } catch (const std::exception& trouble) {
        fail(trouble);
    }
    if (isStep && !failed && Clock::now() - transactionStart >= kLongestTransaction) commit();
}

void Recorder::Impl::write(const RunEvent& event) {
    if (const auto* step = std::get_if<std::unique_ptr<StepRecord>>(&event)) store.addStep(**step);
    if (const auto* spans = std::get_if<std::vector<SpanRecord>>(&event)) store.addSpans(*spans);
    if (const auto* samples = std::get_if<std::vector<CounterSample>>(&event)) store.addCounters(*samples);
    if (const auto* remark = std::get_if<Remark>(&event)) store.addRemark(remark->sentence);
    if (const auto* serving = std::get_if<std::unique_ptr<ServingRecord>>(&event)) store.addServing(**serving);
}

void Recorder::Impl::handle(Begin& message) {
    std::exception_ptr error;
    int id = 0;
    try {
        failed = told = ended = false;
        stepsPending = 0;
        id = store.beginRun(*message.info, options.level);
        recording = true;
    } catch (...) {
        error = std::current_exception();
        store.rollback();
        failed = told = true; // until the next beginRun; the file has no run to tell it of
    }
    lastBeat = Clock::now();
    busyAtBegin = threadCpuNs();
    {
        const std::lock_guard lock(mutex);
        health = {};
        beginError = std::move(error); // moved as a whole: the engine's thread destroys it
        if (!failed) run = id;
        ++beginsDone;
    }
    done.notify_all();
    if (failed) return;
    try { // the engine reads its prompt meanwhile
        store.addPrompts(std::exchange(message.info->prompts, {}));
        commit();
    } catch (const std::exception& trouble) {
        fail(trouble);
    }
}

void Recorder::Impl::handle(const End& message) {
    if (!recording) return;
    if (!failed && store.hasPending()) commit(); // the last steps do not depend on what follows
    if (ended) return;                           // that commit filled the file and has ended the run
    lookForFile();
    recording = false;
    RecorderHealth now;
    {
        const std::lock_guard lock(mutex);
        health.writerBusyNs = threadCpuNs() - busyAtBegin;
        now = health;
    }
    if (failed) { // whatever the engine did, the recording is not finished
        tellFailure();
        return;
    }
    try {
        store.setHealth(now.droppedSteps, now.writerBusyNs, now.error);
        store.endRun(message.status, message.text);
        commit();
    } catch (const std::exception& trouble) {
        fail(trouble);
    }
}

void Recorder::Impl::handle(const std::vector<ClockReading>& readings) {
    if (failed || !recording) return;
    try {
        if (!store.hasPending()) transactionStart = Clock::now();
        store.addClocks(readings);
    } catch (const std::exception& trouble) {
        fail(trouble);
    }
}

void Recorder::Impl::handle(const EngineEvent& event) {
    if (failed || !recording) {
        const std::lock_guard lock(mutex);
        ++health.droppedEvents;
        return;
    }
    try {
        if (!store.hasPending()) transactionStart = Clock::now();
        store.addEngineEvent(event);
    } catch (const std::exception& trouble) {
        fail(trouble);
    }
}

void Recorder::Impl::commit() {
    lookForFile();
    if (failed) return;
    try {
        store.commit();
    } catch (const Error& error) {
        fail(error);
        return;
    }
    stepsPending = 0;
    measureFile();
    if (options.onCommit) options.onCommit(++revision);
}

/// Ends the run where its file has grown to the size that it may have. What is in the file stays.
void Recorder::Impl::measureFile() {
    std::int64_t bytes = 0;
    try {
        bytes = store.fileBytes();
    } catch (const Error&) {
        return; // the next commit says what is wrong with the file
    }
    {
        const std::lock_guard lock(mutex);
        health.fileBytes = bytes;
    }
    if (!recording || options.maxFileBytes <= 0 || bytes < options.maxFileBytes) return;
    RecorderHealth now;
    {
        const std::lock_guard lock(mutex);
        health.full = true;
        health.writerBusyNs = threadCpuNs() - busyAtBegin;
        now = health;
    }
    recording = false;
    ended = true;
    try {
        store.setHealth(now.droppedSteps, now.writerBusyNs, now.error);
        store.endRun(RunStatus::Stopped, "the file reached the size that it may have (max_file_bytes); "
                                         "the steps before are complete");
        store.commit();
    } catch (const std::exception& trouble) {
        fail(trouble);
    }
}

void Recorder::Impl::beat(bool always) {
    if (!recording || failed || (!always && Clock::now() - lastBeat < kHeartbeat)) return;
    lastBeat = Clock::now();
    lookForFile();
    if (failed) return;
    RecorderHealth now;
    {
        const std::lock_guard lock(mutex);
        now = health;
    }
    try {
        store.setHealth(now.droppedSteps, now.writerBusyNs, now.error);
    } catch (const Error& error) {
        fail(error);
        return;
    }
    commit();
}

/// Stops recording when the path of the file names another file or none, or when the file was truncated: nobody would
/// find what is written.
void Recorder::Impl::lookForFile() {
    if (failed) return;
    const TraceStore::Loss loss = store.loss();
    if (!loss.sentence.empty()) fail(loss.sentence, loss);
}

void Recorder::Impl::fail(const std::exception& trouble) {
    const TraceStore::Loss loss = store.lossBehind(trouble);
    fail(loss.sentence.empty() ? sentenceOf(trouble) : loss.sentence, loss);
}

/// Stops recording this run while the engine goes on. What was committed can still be read, unless somebody took the
/// file away.
void Recorder::Impl::fail(const std::string& sentence, const TraceStore::Loss& loss) {
    store.rollback();
    {
        const std::lock_guard lock(mutex);
        health.droppedSteps += stepsPending;
        if (health.error.empty()) {
            health.error = sentence;
            health.lost = loss.everything;
            health.movedTo = loss.movedTo;
        }
    }
    stepsPending = 0;
    if (failed) return;
    failed = true;
    store.giveRoom();
    tellFailure();
    // When somebody renames the file, its log keeps the old name, so what is in the log is put into the file now.
    if (!loss.sentence.empty() && !loss.everything) store.finish();
}

void Recorder::Impl::post(Message message, std::unique_lock<std::mutex>& lock) {
    queue.push_back(std::move(message));
    urgent = true;
    lock.unlock();
    wake.notify_one();
    lock.lock();
}

std::string RecorderHealth::whatIsLeft() const {
    if (lost) return "nothing of this run was kept";
    return movedTo.empty() ? "steps recorded before it are safe" : "steps recorded before it are in " + movedTo;
}

Recorder::Recorder(const std::string& path, RecorderOptions options)
    : impl_(std::make_unique<Impl>(path, std::move(options))) {}

Recorder::~Recorder() {
    endRun(RunStatus::Stopped, "the program closed before the run was done");
    {
        const std::lock_guard lock(impl_->mutex);
        impl_->closing = true;
    }
    impl_->wake.notify_one();
    impl_->writer.join();
}

RecordLevel Recorder::level() const { return impl_->options.level; }

void Recorder::beginRun(const RunInfo& info) {
    endRun(RunStatus::Stopped, "another run began");
    Message message{Begin{std::make_unique<RunInfo>(info)}};
    std::unique_lock lock(impl_->mutex);
    const std::int64_t ticket = ++impl_->beginsAsked;
    impl_->running = true;
    impl_->post(std::move(message), lock);
    impl_->done.wait(lock, [&] { return impl_->beginsDone >= ticket; });
    if (impl_->beginError) {
        impl_->running = false;
        std::rethrow_exception(std::exchange(impl_->beginError, nullptr));
    }
}

std::unique_ptr<StepRecord> Recorder::acquire() {
    std::unique_ptr<StepRecord> record;
    {
        const std::lock_guard lock(impl_->mutex);
        if (!impl_->spare.empty()) {
            record = std::move(impl_->spare.back());
            impl_->spare.pop_back();
        }
    }
    if (!record) return std::make_unique<StepRecord>();
    record->clear();
    return record;
}

void Recorder::take(RunEvent event) noexcept {
    try {
        if (const auto* step = std::get_if<std::unique_ptr<StepRecord>>(&event)) {
            if (*step) impl_->takeStep(std::move(event));
            return;
        }
        const std::size_t bytes = bytesOf(event);
        if (bytes == 0) return;                   // nothing in it
        const std::lock_guard lock(impl_->mutex); // the writer is not woken: it looks by itself
        if (!impl_->running) return;
        impl_->queue.push_back({std::move(event), bytes});
        impl_->queuedBytes += bytes;
    } catch (const std::bad_alloc&) {
        // This event is lost. Steps matter more: they go on, and a step that is lost is counted.
    }
}

void Recorder::take(std::vector<ClockReading> readings) noexcept {
    try {
        if (readings.empty()) return;
        std::size_t bytes = 0;
        for (const ClockReading& reading : readings) bytes += sizeof reading + reading.clock.size();
        const std::lock_guard lock(impl_->mutex);
        if (!impl_->running) return;
        impl_->queue.push_back({std::move(readings), bytes});
        impl_->queuedBytes += bytes;
    } catch (const std::bad_alloc&) {
        // A reading more or less does not matter.
    }
}

bool Recorder::offer(EngineEvent event) noexcept {
    const std::size_t bytes = bytesOf(event);
    const std::lock_guard lock(impl_->mutex); // the writer is not woken: it looks by itself
    try {
        if (impl_->running && impl_->queuedBytes + bytes <= impl_->options.queueBytes) {
            impl_->queue.push_back({std::move(event), bytes});
            impl_->queuedBytes += bytes;
            return true;
        }
    } catch (const std::bad_alloc&) {
        // counted below
    }
    ++impl_->health.droppedEvents;
    return false;
}

void Recorder::Impl::takeStep(RunEvent step) {
    const std::size_t bytes = bytesOf(step);
    bool crowded = false;
    {
        const std::lock_guard lock(mutex);
        try {
            if (running && queuedBytes + bytes <= options.queueBytes) {
                queue.push_back({std::move(step), bytes});
                queuedBytes += bytes;
                crowded = queuedBytes > options.queueBytes / 2;
                urgent |= crowded;
            } else {
                ++health.droppedSteps;
                keepSpare(std::get<std::unique_ptr<StepRecord>>(std::move(step)));
            }
        } catch (const std::bad_alloc&) {
            ++health.droppedSteps;
        }
    }
    if (crowded) wake.notify_one();
}

void Recorder::endRun(RunStatus status, const std::string& message) noexcept {
    try {
        Message end{End{status, message}};
        std::unique_lock lock(impl_->mutex);
        if (!impl_->running) return;
        impl_->post(std::move(end), lock);
        impl_->running = false;
    } catch (const std::exception&) {
        // Out of memory: the run stays "running" and readers call it stale.
    }
}

void Recorder::flush() {
    std::unique_lock lock(impl_->mutex);
    impl_->flush(lock);
}

void Recorder::hold() {
    std::unique_lock lock(impl_->mutex);
    impl_->flush(lock);
    lock.release(); // the writer thread has written its batch and needs the mutex for the next one
}

void Recorder::letGo() { impl_->mutex.unlock(); }

RecorderHealth Recorder::health() const {
    const std::lock_guard lock(impl_->mutex);
    RecorderHealth now = impl_->health;
    now.queuedBytes = std::int64_t(impl_->queuedBytes);
    return now;
}

int Recorder::runId() const {
    const std::lock_guard lock(impl_->mutex);
    return impl_->run;
}

} // namespace kvscope
