// The TraceSink that writes a .kvtrace: a bounded queue and a writer thread, so that the engine never waits for SQLite.
#pragma once

#include "core/trace/trace_sink.h"
#include "profiler/format/clock_reading.h"
#include "profiler/format/engine_event.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace kvscope {

struct RecorderOptions {
    RecordLevel level = RecordLevel::Full;
    bool overwrite = false; // false: an existing file that is not ours is refused; a trace gets another run appended
    std::size_t queueBytes = std::size_t(256) << 20; // beyond this, steps are dropped and counted
    /// A run ends as stopped once the file has so many bytes; its last steps may go beyond it by a batch. 0: no limit
    std::int64_t maxFileBytes = 0;
    /// Called on the writer thread after each commit with a growing number.
    std::function<void(std::int64_t revision)> onCommit;
};

/// The losses and costs of a recorder; they are also written into the trace.
struct RecorderHealth {
    std::int64_t droppedSteps = 0;
    std::int64_t droppedEvents = 0; // of offer(): the queue was full, or memory
    std::int64_t writerBusyNs = 0;  // CPU time of the writer thread
    std::int64_t queuedBytes = 0;   // handed over and not yet written
    std::int64_t fileBytes = 0;     // size of the file with the last commit in it
    bool full = false;              // the file reached RecorderOptions::maxFileBytes: the run has ended
    // first storage error, e.g. a full disk; recording stopped there, and the steps before are safe
    std::string error;
    bool lost = false;   // the steps before are not safe: the file was deleted, replaced or truncated
    std::string movedTo; // where the file with the steps is now, if it was renamed
    /// Half a sentence about a run whose recording ended with an error: "steps recorded before it are safe", or what is
    /// true instead.
    std::string whatIsLeft() const;
};

class Recorder final : public TraceSink {
public:
    /// Creates or opens the file at once. @throws Error(Storage) naming the file
    Recorder(const std::string& path, RecorderOptions options);
    ~Recorder() override; // ends a running run as stopped, flushes, closes
    RecordLevel level() const override;
    void beginRun(const RunInfo& info) override;
    std::unique_ptr<StepRecord> acquire() override;
    /// Any thread may call it. Events that come while no run is on are dropped.
    void take(RunEvent event) noexcept override;
    /// As take(), for readings of other clocks.
    void take(std::vector<ClockReading> readings) noexcept;
    /// As take(), of another engine. Counts against queueBytes. @return false: it was dropped and counted
    bool offer(EngineEvent event) noexcept;
    void endRun(RunStatus status, const std::string& message) noexcept override;

    /// Waits until everything committed so far is in the file.
    void flush();
    /// Flushes, and keeps the writer thread out of SQLite and of the file until the same thread calls letGo().
    /// Meanwhile other threads that hand events over wait.
    void hold();
    void letGo();
    RecorderHealth health() const;
    int runId() const; // of the current or last run

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

} // namespace kvscope
