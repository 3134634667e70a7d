// A counterfactual: a recorded run goes on from one of its steps under other settings. The fork reads the prompt under
// its own settings, is given the recorded tokens of the steps before (whatever it would have chosen), and chooses its
// tokens itself from the step on. docs/fork.md says what is exact in that and what is not.
#pragma once

#include "core/model/model.h"
#include "core/session/decode_session.h"
#include "profiler/run/recorded_settings.h"
#include "profiler/run/recorded_text.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace kvscope {

/// What a fork changes. What is not named stays as it was recorded; with another method that is its parameters' own
/// defaults, its own cache policy and its own number of slots.
struct ForkChange {
    std::optional<std::string> method;
    std::vector<std::pair<std::string, std::string>> settings; // parameters of the method
    std::optional<std::int64_t> deviceKvBlocks, deviceKvBytes; // one of them, as SessionOptions has them
    std::optional<std::string> cachePolicy;
    std::optional<bool> offload;
    std::optional<KvType> kvType; // of full KV blocks
    std::optional<Link> link;
    std::optional<Backend> backend;
    std::optional<int> maxNewTokens;
    std::optional<double> temperature, topP;
    std::optional<int> topK;
    std::optional<std::uint64_t> seed;
    std::optional<LeftOutBlock> leftOut; // its step is the fork's
};

struct Fork {
    RecordedSettings recorded;
    RecordedText text;
    int step = 0;                     // the first step that the fork makes by its own choice; 0: it reads the prompt
    SessionOptions options;           // the fork's
    std::vector<std::string> changes; // what differs from the recorded settings, in words; empty: nothing
    /// [sequence] The recorded tokens of the steps before `step`.
    std::vector<std::vector<std::int32_t>> given() const;
};

/// Plans a fork. Its run has the keys `fork` and, where the recorded one has it, `needles` in run_meta.
/// sameFile: the fork is recorded in the trace of the recorded run, which its key then does not name.
/// @throws Error(BadInput) where the run cannot be forked, with the reason in one sentence: what recordedSettings
/// throws, a run that denoises, that lacks steps or its prompt, no such step
/// model: where the model lies now; empty: where the trace says.
Fork planFork(const TraceReader& reader, int runId, int step, const ForkChange& change, bool sameFile,
              const std::string& model = {});

/// The recorded settings, for a run beside the fork that shall repeat the recorded run; the name of that run says so.
SessionOptions unchangedOptions(const TraceReader& reader, const Fork& fork);

/// Why no step of this run can be forked, as far as its row tells; empty: one can.
std::string whyNoFork(const RunRow& run);

/// The first token in which a text differs from the recorded one.
struct UnlikeToken {
    int step = 0, sequence = 0;
    std::int32_t recorded = -1, now = -1; // -1: the sequence has ended
};
/// Compares the tokens of the steps before `steps`.
std::optional<UnlikeToken> firstUnlike(const RecordedText::Ids& recorded, const RecordedText::Ids& now, int steps);
/// @throws Error(BadInput) always, with the sentence that the recorded run cannot be repeated on this machine
[[noreturn]] void refuseUnlike(const Fork& fork, const UnlikeToken& token, const Model& model);

/// Runs the recorded settings again up to the fork's step, without recording, and compares the tokens. If they are the
/// same, every difference of the fork comes from its settings.
/// @throws Error(BadInput) naming the first token that differs, Error(Cancelled), what a session throws
void checkRestored(const Fork& fork, const std::shared_ptr<const Model>& model, const Progress& progress,
                   const std::stop_token& stop);

} // namespace kvscope
