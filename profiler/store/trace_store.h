// Writes a .kvtrace. Used by one thread at a time; the Recorder puts a queue in front of it.
#pragma once

#include "core/trace/trace_sink.h"
#include "profiler/format/clock_reading.h"
#include "profiler/sqlite/row_inserter.h"
#include "profiler/sqlite/sqlite.h"
#include "profiler/store/recent_calls.h"
#include "profiler/store/serving_writer.h"
#include "profiler/store/writer_lock.h"

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

class TraceStore {
public:
    /// Creates the file, or opens a trace to append a run. overwrite: an existing file is replaced, whatever it was,
    /// unless somebody is writing it.
    /// @throws Error(Storage) naming the file: no such folder, not writable, not a trace, written by a newer program,
    /// being written
    TraceStore(const std::string& path, bool overwrite);
    ~TraceStore(); // does not finish the file: call finish for that

    /// Adds a run and commits it. @return its id. @throws Error(Storage | Unsupported): full disk, a run too large to
    /// number
    int beginRun(const RunInfo& info, RecordLevel level);
    /// The run's prompts; may be many rows, so apart from beginRun. Texts are made row by row.
    void addPrompts(const RunPrompts& prompts);
    /// Adds a step to the open transaction. @throws Error(Storage) also if the record breaks the rules of StepRecord
    void addStep(const StepRecord& record);
    /// Adds spans. A span may come later than the call that started it, by some ten thousand calls at most, but not
    /// before it.
    void addSpans(const std::vector<SpanRecord>& spans);
    /// Adds a sentence for people, which is shown beside how the run was recorded.
    void addRemark(const std::string& sentence);
    void addCounters(const std::vector<CounterSample>& samples);
    void addClocks(const std::vector<ClockReading>& readings);
    /// Writes rows of a serving run: requests that are new or have changed, spans, iterations. @throws Error(Storage)
    void addServing(const ServingRecord& record);
    void setHealth(std::int64_t droppedSteps, std::int64_t writerBusyNs, const std::string& error);
    void endRun(RunStatus status, const std::string& message);

    bool hasPending() const { return connection_.inTransaction(); }
    void commit();
    void rollback() noexcept;
    /// What another program did to the file, so that recording into it makes no sense any more.
    struct Loss {
        std::string sentence;    // empty: the file is in its place, and whole
        bool everything = false; // no part of the run is left
        std::string movedTo;     // where the file is now; empty: not known
    };
    /// To be called before each commit: a commit could write pages behind the end of a file that was truncated.
    Loss loss();
    /// Puts everything into the one file: no -wal or -shm stays behind, unless somebody is still reading.
    void finish() noexcept;
    /// Puts everything of a finished trace into the one file, where a reader kept finish() from it, and removes -wal
    /// and -shm. Does nothing while somebody still reads or writes the trace, and where a run is `running`: its log
    /// belongs to its writer.
    static void settle(const std::string& path) noexcept;
    /// Before the last small transaction on a full disk: see WriterLock.
    void giveRoom() const { lock_.giveRoom(); }

private:
    void prepare();
    void begin();
    void addMeta(std::int64_t run, const RunInfo& info);
    void addOracle(const StepRecord& record);
    void addLayers(const StepRecord& record);
    void addSelections(const StepRecord& record);
    void noteFed(const StepRecord& record);
    bool opensBlock(const StepRecord& record, std::int32_t sequence) const;
    bool someBlockOpens(const StepRecord& record) const;
    void addTokens(const StepRecord& record);
    void addDenoising(const StepRecord& record);
    void addTileRows(const DenoiseStep& step, int number);
    void addKvChanges(const DenoiseStep& step, int number);
    /// The blob of one selection; lives until the row's statement has run.
    RowInserter::Blob encode(const StepRecord& record, const SelectionRecord& row);

    WriterLock lock_; // before the connection, and for as long
    bool isNew_;      // no file had the name before, or overwrite replaced it
    Connection connection_;
    FileIdentity identity_;
    std::uintmax_t size_ = 0; // size of the file when it was last looked at
    /// Id of a text in the table of texts.
    std::int64_t intern(std::string_view value);
    void addFlows(const std::vector<SpanRecord>& spans, std::int64_t first);

    RowInserter insertSpans_, insertFlows_, insertCounters_, insertSteps_, insertLayers_, insertSelections_,
        insertLookahead_, insertOracle_, insertTokens_, insertPrompts_, insertForwards_, insertForwardTokens_,
        insertForwardLayers_, insertTileRows_, insertKvChanges_;
    ServingWriter serving_;
    Statement updateHealth_, begin_, commit_, insertText_, findText_;
    std::map<std::string, std::int64_t, std::less<>> texts_;
    std::int64_t lastSpan_ = 0; // id
    RecentCalls calls_;
    int run_ = 0;
    RunInfo info_;          // of the current run, without its prompts
    int kvBlockTokens_ = 0; // of it; 0: not known
    RecordLevel level_ = RecordLevel::Full;
    std::array<std::vector<std::byte>, RowInserter::kRowsAtOnce> blobs_;
    std::vector<float> massSum_;    // [layer] scratch
    std::vector<int> massCount_;    // [layer]
    std::vector<std::int32_t> fed_; // [sequence] position fed in this step; -1: none
    std::vector<int> tokenIndex_;   // [sequence]
};

} // namespace kvscope
