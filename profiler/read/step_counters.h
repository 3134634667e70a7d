// Numbers that change from step to step, as curves over time: what the timeline draws above its spans.
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

struct CounterInfo {
    const char *id, *title, *unit, *help; // unit: "tokens/s", "share", "bytes/s", "tokens"
};

/// What a step did (rates, shares, bytes a second) is known from its start to its end, at the latest to the start of
/// the next step. What its steps leave behind (Occupancy, KvTokens) holds until the next step changes it, and ends with
/// the last one.
class StepCounters {
public:
    enum Counter { TokenRate, HitRate, ToDevice, ToHost, Occupancy, KvTokens, kCount };
    static const CounterInfo& info(Counter counter);
    /// Whether the value holds between two steps.
    static constexpr bool holds(Counter counter) { return counter == Occupancy || counter == KvTokens; }

    /// slotBlocks: block slots of the device tier in all layers, sequences and KV heads; 0: everything is resident;
    /// negative: not known.
    explicit StepCounters(std::int64_t slotBlocks = 0) : slotBlocks_(slotBlocks) {}
    /// Slots may become known after the first steps of a run that has just begun.
    void setSlotBlocks(std::int64_t slotBlocks);
    /// Steps in order of their number.
    void append(const std::vector<StepRow>& steps);

    bool has(Counter counter) const { return largest_[counter] > 0; }
    double largest(Counter counter) const { return largest_[counter]; }
    std::size_t size() const { return start_.size(); }
    /// Smallest and largest of the values that there are within [fromNs, toNs). False: there is none, because no step
    /// runs then or the counter is undefined in those that do.
    bool range(Counter counter, std::int64_t fromNs, std::int64_t toNs, float& low, float& high) const;
    /// The value at a time; NaN where there is none.
    double at(Counter counter, std::int64_t ns) const;
    /// Number of the step at this time or the last before it; -1: none.
    int stepAt(std::int64_t ns) const;
    /// Where a step begins and ends; false: not recorded.
    bool timesOf(int step, std::int64_t& startNs, std::int64_t& endNs) const;
    /// The time from the first step's start to the last one's end, of all steps or of the decode steps; false: there
    /// are none.
    bool timesOfAll(bool decodeOnly, std::int64_t& startNs, std::int64_t& endNs) const;
    int firstDecodeStep() const {
        return firstDecode_ == kNowhere ? -1 : number_[firstDecode_];
    } // its number; -1: none

private:
    static constexpr std::size_t kNowhere = std::size_t(-1);
    static constexpr std::size_t kGroup = 64; // steps with one minimum and maximum: bounds the cost of a pixel
    struct Extremes {
        float low, high;
    };
    std::size_t indexAt(std::int64_t ns) const; // of the last step that starts at ns or before; size() if none
    // the value is not known any more at this time
    bool isOver(Counter counter, std::size_t step, std::int64_t ns) const;
    Extremes of(Counter counter, std::size_t first, std::size_t last) const;
    float occupancyOf(std::size_t step) const;
    float kvTokensOf(std::size_t step) const;
    void add(int counter, float value);

    std::int64_t slotBlocks_ = 0, loadedBlocks_ = 0;
    std::int64_t fedTokens_ = 0; // < 0: not known, because a step is missing
    std::size_t firstDecode_ = kNowhere;
    std::int64_t lastEnd_ = 0;
    std::vector<std::int64_t> start_, end_;
    std::vector<std::int32_t> number_;
    std::vector<std::int64_t> loadedAt_, fedAt_; // blocks and tokens up to a step; -1: not a decode step, not known
    std::vector<float> values_[kCount];
    std::vector<Extremes> groups_[kCount];
    double largest_[kCount] = {};
};

} // namespace kvscope
