// Deterministic runs that obey every rule a real run obeys, for tests of the recorder, the reader and the views.
#pragma once

#include "core/trace/trace_sink.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvscope::synthetic {

struct RunShape {
    int layers = 4, kvHeads = 2, sequences = 1;
    int denseLayers = 0;    // the first ones attend everything and select nothing
    int promptTokens = 200; // of sequence 0; each further one is one token longer
    int decodeSteps = 20;   // sequence 0; the others stop after three quarters of it
    int blockSize = 16;
    int sink = 1, window = 2, queryAware = 4, queryAgnostic = 2;
    bool oracle = false; // selections carry the captured attention mass
    std::uint64_t seed = 1;
    std::string method = "nosa";
};

RunInfo infoOf(const RunShape& shape);

/// Makes the steps one after the other: prefill, then decode.
class RunGenerator {
public:
    explicit RunGenerator(const RunShape& shape);
    int steps() const { return shape_.decodeSteps + 1; }
    /// Fills an empty record with the next step. level: what the engine would leave in it.
    void fillNext(StepRecord& record, RecordLevel level);
    /// The sink takes the next `count` steps, each with what its level records.
    void recordNext(TraceSink& sink, int count = 1);

private:
    struct Head {
        std::vector<std::int32_t> previous, pool;
        bool hasPrevious = false;
    };
    std::uint64_t random();
    int below(int limit) { return int(random() % std::uint64_t(limit)); }
    void fillLayer(int layer, StepRecord& record);
    void select(int layer, int sequence, int kvHead, int position, StepRecord& record);

    RunShape shape_;
    std::uint64_t state_;
    int next_ = 0;
    std::int64_t clockNs_ = 1000;
    std::vector<Head> heads_;
};

/// The tokens' bytes repeat these: plain words, quotes, commas, line breaks and halves of multi-byte characters.
const std::vector<std::string>& words();
/// Position a sequence feeds in a decode step, or -1 if it has stopped by then.
int fedPosition(const RunShape& shape, int sequence, int step);

/// Runs a whole shape through a sink.
void record(TraceSink& sink, const RunShape& shape, RunStatus status = RunStatus::Finished);
/// The steps in memory, as they are recorded at `level`.
std::vector<StepRecord> stepsOf(const RunShape& shape, RecordLevel level = RecordLevel::Full);
/// Records into a new file with a Recorder of that level.
void recordFile(const std::filesystem::path& path, const RunShape& shape, RecordLevel level = RecordLevel::Full);

} // namespace kvscope::synthetic
