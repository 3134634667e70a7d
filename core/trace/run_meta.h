// Keys of table `run_meta`; docs/trace-format.md says what each one holds.
#pragma once

namespace kvscope::run_meta {

inline constexpr const char* kKnows = "knows";                        // Knowledge::toJson()
inline constexpr const char* kEngine = "engine";                      // program that decoded
inline constexpr const char* kOurEngine = "kvscope";                  // the value of `engine` in runs of this program
inline constexpr const char* kEngineVersion = "engine_version";       // version of that program
inline constexpr const char* kModelShape = "model_shape";             // toJson(ModelShape)
inline constexpr const char* kModelPath = "model_path";               // absolute; an embedded model's name
inline constexpr const char* kModelFingerprint = "model_fingerprint"; // fingerprintOf(Model)
inline constexpr const char* kIndexLeader = "index_leader";           // indexLeaders(ModelConfig)
inline constexpr const char* kKvBlockTokens =
    "kv_block_tokens";                                 // of a run that selects parts of a block: tokens of a block
inline constexpr const char* kProcessor = "processor"; // as /proc/cpuinfo or the driver names it

inline constexpr const char* kDenoisingBlock = "denoising_block";   // tokens of a block that is denoised
inline constexpr const char* kDenoisingCanvas = "denoising_canvas"; // tokens behind the prompt that all forwards see

// Of one rank of a run in several processes.
inline constexpr const char* kHost = "host";     // name of the machine
inline constexpr const char* kClocks = "clocks"; // readings of other clocks: [[clock, own ns, its ns, error ns], ...]
inline constexpr const char* kGroup = "group";   // the same text on all ranks
inline constexpr const char* kRank = "rank";     // 0, 1, ...
inline constexpr const char* kWorld = "world";   // ranks of the group
inline constexpr const char* kLayout = "layout"; // "tp=1/4 dp=0/2": place and size in each dimension
inline constexpr const char* kHeadFirst = "head_first";     // global number of this rank's KV head 0; absent: 0
inline constexpr const char* kLayerFirst = "layer_first";   // global number of this rank's layer 0; absent: 0
inline constexpr const char* kHeadRange = "head_range";     // "8..15": the KV heads of this rank, by global numbers
inline constexpr const char* kMergedFrom = "merged_from";   // file and run that kvscope-cli merge copied
inline constexpr const char* kClockOffset = "clock_offset"; // what merge added to all times, one JSON object

inline constexpr const char* kNeedles = "needles"; // facts that the prompts hide, needlesJson()
inline constexpr const char* kFork =
    "fork"; // which run went on here from which step, and what changed: one JSON object

inline constexpr const char* kLabels = "labels"; // what a person says of the run: one JSON object

inline constexpr const char* kServing = "serving"; // of a serving run: knobs, budgets, bounds, costs: one JSON object

} // namespace kvscope::run_meta
