// Keys of table `run_meta`; docs/trace-format.md says what each one holds.
#pragma once

namespace kvscope::run_meta {

inline constexpr const char* kKnows = "knows";                        // Knowledge::toJson()
inline constexpr const char* kEngine = "engine";                      // program that decoded
inline constexpr const char* kEngineVersion = "engine_version";       // of it
inline constexpr const char* kModelShape = "model_shape";             // toJson(ModelShape)
inline constexpr const char* kModelPath = "model_path";               // absolute; an embedded model's name
inline constexpr const char* kModelFingerprint = "model_fingerprint"; // fingerprintOf(Model)
inline constexpr const char* kKvBlockTokens =
    "kv_block_tokens";                                 // where the units that are selected are parts of a block
inline constexpr const char* kProcessor = "processor"; // as /proc/cpuinfo or the driver names it

inline constexpr const char* kDenoisingBlock = "denoising_block"; // tokens of a block that is denoised

inline constexpr const char* kServing = "serving"; // of a serving run: knobs, budgets and bounds, one JSON object

} // namespace kvscope::run_meta
