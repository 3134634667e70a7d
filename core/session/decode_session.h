// One run: reads a batch of prompts and then makes decode steps, with one method.
#pragma once

#include "core/model/model.h"
#include "core/plan/backend.h"
#include "core/plan/kv_format.h"
#include "core/plan/planted_selections.h"
#include "core/select/method.h"
#include "core/trace/gpu_trace.h"
#include "core/trace/oracle.h"
#include "core/trace/trace_sink.h"
#include "core/transfer/link.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvscope {

/// The first GPU in words, e.g. "NVIDIA H200, 140 GiB, CUDA 13.0". @throws Error with a sentence for people when there
/// is no GPU that the CUDA backend can use, or this program was built without the CUDA backend
std::string describeGpu();

/// How the next token is chosen from the logits. With temperature 0 the choice is greedy.
struct Sampling {
    double temperature = 0, topP = 1;
    int topK = 0; // 0: all
    std::uint64_t seed = 0;
};

class DenoiseObserver; // core/session/denoise_engine.h

/// A block of a sequence that is not attended to from a decode step on.
struct LeftOutBlock {
    int block = -1;
    int fromStep = 1;
    int sequence = 0;
};

struct SessionOptions {
    Backend backend = Backend::Cpu;
    std::string method = kDefaultMethod;
    std::vector<std::pair<std::string, std::string>>
        settings; // --set key=value, applied over the checkpoint's defaults
    int maxNewTokens = 128;
    bool stopAtEos = true;
    Sampling sampling;
    std::optional<std::int64_t> deviceKvBlocks; // slots per (sequence, layer, KV head)
    std::optional<std::int64_t> deviceKvBytes;  // instead: bytes of all slots together
    std::string cachePolicy;                    // empty: keep-selected, or lru when the pool has slots to spare
    bool offload = true;                        // false: every block stays resident
    std::optional<KvType> kvType;               // of full KV blocks; nothing: the backend's own
    Link link;
    DenoiseObserver* denoiseObserver =
        nullptr;                              // block diffusion: told what every forward computed; outlives the session
    bool oracle = false;                      // also measure the attention mass the selection captures (slow)
    OracleObserver* oracleObserver = nullptr; // with the oracle: gets its record of every selection
    int threads = 0;                          // 0: all cores
    GpuTrace* gpuTrace = nullptr;             // CUDA: the recorder of kernels; outlives the session
    bool twoInFlight = true;                  // CUDA: the next step starts while the host records this one
    std::string name;                         // name of the run; empty: made from method and model
    bool recordModelPath = true;              // whether the trace says where the model lies
    /// [sequence] The first tokens that each sequence gets in place of those that the model chooses, so that a text
    /// that is there already goes on. The model's own choices are made and dropped: a random stream stays in step.
    /// Empty: none. Not for models that denoise.
    std::vector<std::vector<std::int32_t>> given;
    std::optional<LeftOutBlock> leftOut; // CPU
    /// Selections that are drawn in place of the method's own, of one sequence (serve::EngineOptions::planted).
    std::optional<PlantedSequence> planted;
    std::vector<std::pair<std::string, std::string>> meta; // more of run_meta, e.g. the needles of the prompt
};

/// @throws Error(BadInput) where no policy has this name, or the policy goes by the worth of blocks and the method does
/// not say what blocks are worth
void checkCachePolicy(const std::string& name, const MethodEntry& method, const SelectionSpec& spec,
                      const ModelConfig& config);

struct SessionSummary {
    int promptTokens = 0, steps = 0;          // decode steps done
    std::int64_t decodedTokens = 0;           // tokens fed by decode steps, all sequences
    std::int64_t prefillNs = 0, decodeNs = 0; // measured wall time
    std::int64_t hits = 0, misses = 0, h2dBytes = 0, d2hBytes = 0, exposedNs = 0;
    double localityMean = 0,
           localityMin = 0; // over (layer, sequence, KV head, step), block-opening steps left out; NaN: none
    std::int64_t localityCount = 0;
    double densityMean =
        std::numeric_limits<double>::quiet_NaN(); // block diffusion: tokens of the chosen pages / prefix,
                                                  // over sparse (layer, sequence, KV head, forward)
    int givenUnlike = -1; // first step in which a given token is not the one that the model chose; -1: none

    struct Part { // of the decode steps
        int steps = 0;
        std::int64_t tokens = 0, ns = 0, hits = 0, misses = 0;
    };
    /// Steps in which a sequence selected for the first time; while no step has selected, the first decode step. The
    /// totals above count these steps. The rates below leave them out, unless there are no others.
    Part cold;
    bool selects = false;           // whether some decode step has selected
    double tokensPerSecond() const; // fed by decode steps, all sequences, per second of decode wall time; 0: none
    double hitRate() const;         // hits / (hits + misses); NaN without selections

private:
    Part counted() const;
};

struct SessionRun;

/// Used from one thread. A block-diffusion model is decoded block by block: a step is then one denoising forward of
/// every unfinished sequence, and there are no logits of a next token. Everything a step allocates is allocated before
/// it.
class DecodeSession {
public:
    /// Checks options against the model. @throws Error(BadInput | OutOfMemory)
    DecodeSession(std::shared_ptr<const Model> model, std::vector<std::vector<std::int32_t>> prompts,
                  SessionOptions options, TraceSink& sink);
    ~DecodeSession();

    /// Runs all prompts and samples the first token of each. @throws Error(Cancelled)
    void prefill(const Progress& progress = {}, std::stop_token stop = {});

    /// One decode step of all unfinished sequences. @return false when nothing was left to do
    bool step();

    bool finished() const;
    /// Ends the run in the trace. Further calls do nothing. @throws Error(Storage) on the CPU, where the run was to end
    /// as Finished and another program has written to the model's files meanwhile: the run has ended as Failed then
    void end(RunStatus status, const std::string& message = {});

    const std::vector<std::vector<std::int32_t>>& generated() const; // [sequence], without the prompt
    const SessionSummary& summary() const;
    const SelectionSpec& spec() const;
    const ParameterValues& parameters() const;
    const RunInfo& runInfo() const;
    /// Logits of the last position of a sequence of the last step, float32 [vocab]; null if it was not part of it.
    /// @throws Error(Unsupported) on a block-diffusion model, as forceNextTokens does
    const float* logits(int sequence) const;
    /// Makes the next step feed these ids instead of the sampled ones (teacher forcing in tests). On CUDA only with
    /// SessionOptions::twoInFlight false.
    void forceNextTokens(const std::vector<std::int32_t>& ids);

private:
    std::unique_ptr<SessionRun> run_;
};

} // namespace kvscope
