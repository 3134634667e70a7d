// The packed integer keys of a trace (resources/sql/schema.sql says which table uses which).
#pragma once

#include <cstdint>
#include <utility>

namespace kvscope::trace {

inline constexpr int kApplicationId = 0x4B565343; // 'KVSC'
inline constexpr int kVersion = 1;                // user_version

inline constexpr int kMaxRuns = 255;
inline constexpr int kMaxStep = (1 << 25) - 1;
inline constexpr int kMaxLayers = 1024, kMaxSequences = 1024, kMaxKvHeads = 1024, kMaxTokensPerStep = 1024;

constexpr std::int64_t stepKey(int run, int step) { return std::int64_t(run) << 25 | step; }
constexpr std::int64_t layerKey(int run, int step, int layer) { return stepKey(run, step) << 10 | layer; }
constexpr std::int64_t selectionKey(int run, int step, int layer, int sequence, int kvHead) {
    return layerKey(run, step, layer) << 20 | std::int64_t(sequence) << 10 | kvHead;
}
constexpr std::int64_t tokenKey(int run, int step, int sequence, int index) {
    return stepKey(run, step) << 20 | std::int64_t(sequence) << 10 | index;
}
constexpr std::int64_t promptKey(int run, int sequence, std::int64_t position) {
    return std::int64_t(run) << 55 | std::int64_t(sequence) << 45 | position;
}
/// Key in the tables request and request_span; `number` counts the run's rows in the table.
constexpr std::int64_t servedKey(int run, std::int64_t number) { return std::int64_t(run) << 40 | number; }
inline constexpr std::int64_t kMaxServed = (std::int64_t(1) << 40) - 1;
constexpr std::int64_t memberKey(int run, int iteration, int row) { return stepKey(run, iteration) << 10 | row; }

/// First and last key that belong to steps [first, last] of a run, for a table whose key is the step key shifted left.
constexpr std::pair<std::int64_t, std::int64_t> keysOfSteps(int run, int first, int last, int shift) {
    return {stepKey(run, first) << shift, (stepKey(run, last) << shift) | ((std::int64_t(1) << shift) - 1)};
}
inline constexpr int kLayerShift = 10, kSelectionShift = 30, kTokenShift = 20;

/// The track of sentences about how a run was recorded.
inline constexpr const char* kRemarkTrack = "recorder";

constexpr int stepOf(std::int64_t key, int shift) { return int((key >> shift) & kMaxStep); }

} // namespace kvscope::trace
