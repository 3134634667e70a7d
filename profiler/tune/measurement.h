// What really running a candidate gives: its answers, and the time and the bytes of its decode steps.
#pragma once

#include "base/progress.h"
#include "core/session/decode_session.h"
#include "profiler/tune/candidates.h"
#include "profiler/tune/prompt_set.h"
#include "profiler/tune/share.h"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvscope {

using TokenIds = std::vector<std::vector<std::int32_t>>; // [sequence]

/// Sums over decode steps, without the cold ones in which a sequence selects for the first time.
struct StepSums {
    int steps = 0;
    std::int64_t tokens = 0, hits = 0, misses = 0, h2dBytes = 0;
    double ns = 0; // wall time, and what a modelled link takes on top

    StepSums& operator+=(const StepSums& other);
    double stepNs() const; // NaN without steps, as are the others
    double bytesPerToken() const;
    double hitRate() const;
    double tokensPerSecond() const;
};

struct DecodedBatch {
    TokenIds generated;
    StepSums sums;
};

/// Reads the prompts and decodes options.maxNewTokens greedily, whatever ends a text. forced: fed in place of what is
/// generated, as many as there are; null: the session goes its own way.
/// @throws what a session throws; Error(Cancelled)
DecodedBatch decodeBatch(const std::shared_ptr<const Model>& model, SessionOptions options, const TokenIds& prompts,
                         const TokenIds* forced, const Progress& progress, const std::stop_token& stop);

/// How the answers of a candidate are judged.
enum class QualityMeasure : std::uint8_t {
    Answered, // share of the prompts whose text begins with the answer
    Agreement // share of the tokens that are those of full attention after the same text
};
const char* nameOf(QualityMeasure measure); // "answered", "agreement"

struct TuneMeasurement {
    CountedShare quality; // prompts, or tokens
    bool gaveUp = false;  // the answers could not reach the floor any more, so the other prompts were not run
    StepSums sums;
};

/// Full attention's own texts, to which others are compared.
struct Reference {
    TokenIds generated; // [prompt]; empty: not needed
};

struct MeasureOptions {
    QualityMeasure measure = QualityMeasure::Answered;
    SessionOptions session; // backend, link, threads, tokens; the candidate gives the rest
    int batch = 1;
    double giveUpBelow = 0; // share of right answers; the measurement ends when it cannot be reached any more
};

/// The session of a candidate.
SessionOptions sessionOf(const TuneCandidate& candidate, SessionOptions base);

/// Decodes all prompts with full attention, every block on the device. @throws as decodeBatch
Reference referenceOf(const std::shared_ptr<const Model>& model, const PromptSet& set, const MeasureOptions& options,
                      const Progress& progress, const std::stop_token& stop);

/// Runs all prompts of the set, `batch` at a time; the last batch is filled up with the first prompts, which are then
/// not judged again. @throws as decodeBatch
TuneMeasurement measure(const std::shared_ptr<const Model>& model, const TuneCandidate& candidate, const PromptSet& set,
                        const Reference& reference, const MeasureOptions& options, const Progress& progress,
                        const std::stop_token& stop);

} // namespace kvscope
