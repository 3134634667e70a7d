// Writes a .kvtrace. Used by one thread at a time; the Recorder puts a queue in front of it.
#pragma once

#include "base/indexed.h"
#include "core/trace/trace_sink.h"
#include "profiler/format/clock_reading.h"
#include "profiler/format/engine_event.h"
#include "profiler/sqlite/row_inserter.h"
#include "profiler/sqlite/sqlite.h"
#include "profiler/store/denoise_writer.h"
#include "profiler/store/serving_writer.h"
#include "profiler/store/span_writer.h"
#include "profiler/store/text_table.h"
#include "profiler/store/writer_lock.h"

#include <array>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace kvscope {

class TraceStore {
public:
    /// Creates the file, or opens a trace to append a run. overwrite: an existing file is replaced, whatever it was,
    /// unless somebody is writing it. shownAs: name of the file in errors, where it has another one until it is
    /// complete; empty: `path`.
    /// @throws Error(Storage) naming the file: no such folder, not writable, not a trace, written by a newer program,
    /// being written
    TraceStore(const std::string& path, bool overwrite, const std::string& shownAs = {});
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
    /// Adds what another engine tells beside its steps. A flow from or to a span that is not in the file is left out.
    void addEngineEvent(const EngineEvent& event);
    /// Writes rows of a serving run: requests that are new or have changed, spans, iterations. @throws Error(Storage)
    void addServing(const ServingRecord& record);
    void setHealth(std::int64_t droppedSteps, std::int64_t writerBusyNs, const std::string& error);
    void endRun(RunStatus status, const std::string& message);

    /// Size that the file has once its log is put into it, with what was written so far.
    std::int64_t fileBytes();
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
    /// The same after writing has failed. SQLite calls a file damaged that was truncated, and a commit that was being
    /// written meanwhile may have made the file as long as before.
    Loss lossBehind(const std::exception& trouble);
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
    void addPieces(const StepRecord& record);
    void addGauges(const std::vector<HeldValue>& samples);
    /// The blob of one selection; lives until the row's statement has run.
    RowInserter::Blob encode(const StepRecord& record, const SelectionRecord& row);

    /// The run that is written.
    struct CurrentRun {
        int id = 0;
        RecordLevel level = RecordLevel::Full;
        RunInfo info;          // without its prompts
        int kvBlockTokens = 0; // 0: not known
    };
    /// A sequence in the present step.
    struct SequenceStep {
        std::int32_t fed = -1; // position fed; -1: none
        int tokens = 0;        // written so far
    };
    /// Mass of a layer's selections in the present step.
    struct LayerMass {
        float sum = 0;
        int count = 0;
    };

    std::string path_; // the connection's path is the one that is shown
    WriterLock lock_;  // before the connection, and for as long
    bool isNew_;       // no file had the name before, or overwrite replaced it
    Connection connection_;
    FileIdentity identity_;
    std::uintmax_t size_ = 0; // size of the file when it was last looked at

    RowInserter insertCounters_, insertSteps_, insertLayers_, insertSelections_, insertLookahead_, insertOracle_,
        insertTokens_, insertPrompts_, insertPieces_, insertGauges_;
    TextTable texts_;
    SpanWriter spans_;
    DenoiseWriter denoising_;
    ServingWriter serving_;
    Statement updateHealth_, begin_, commit_, pageCount_;
    std::int64_t pageBytes_ = 0;
    CurrentRun current_;
    std::array<std::vector<std::byte>, RowInserter::kRowsAtOnce> blobs_;
    Numbered<SequenceStep> sequences_; // [sequence]
    Numbered<LayerMass> masses_;       // [layer]
};

} // namespace kvscope
