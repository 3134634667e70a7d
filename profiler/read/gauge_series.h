// One counter over time, ready to be drawn at any zoom: what was counted in intervals, or a value that holds until the
// next one.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

enum class GaugeUnit { Number, Bytes, BytesPerSecond, Percent };

struct GaugeInfo {
    /// Table `counter`, table `gauge`, misses of selections, attention measured beside selections.
    enum class Source { Interval, Held, Residency, Oracle };
    Source source = Source::Held;
    std::string track; // as the trace names it; with the source, what tells series apart
    std::string title; // without the unit
    GaugeUnit unit = GaugeUnit::Number;
    std::string unitName; // of a Number, as the trace has it; may be empty
    double ceiling = 0;   // largest value there can be; 0: not known
    bool operator==(const GaugeInfo&) const = default;
};

/// What the name of a track says: "memory allocated (bytes)", "PCIe Read Throughput [%]". Bytes that were counted in
/// intervals become bytes per second.
GaugeInfo describeGauge(GaugeInfo::Source source, std::string_view track);

class GaugeSeries {
public:
    static constexpr std::int64_t kOpen = std::numeric_limits<std::int64_t>::max(); // holds until the next one

    struct Sample {
        std::int64_t startNs = 0, endNs = kOpen;
        double value = 0;
    };
    /// Appends samples in any order; the order of time is quickest. A sample replaces an earlier one at the same time.
    /// Values that are no numbers, or too large to be drawn, are left out.
    void append(std::vector<Sample> samples);

    std::size_t size() const { return start_.size(); }
    std::int64_t firstNs() const { return start_.empty() ? 0 : start_.front(); }
    std::int64_t lastNs() const;                         // where the last sample ends, or starts if it is open
    double largest() const { return double(all_.high); } // minus infinity while there is nothing
    double smallest() const { return double(all_.low); }
    /// Extremes of the samples that meet [fromNs, toNs); false: none does. The cost does not grow with the range.
    bool range(std::int64_t fromNs, std::int64_t toNs, float& low, float& high) const;
    /// The value at a time; NaN where there is none.
    double at(std::int64_t ns) const;
    std::size_t memoryBytes() const;

private:
    static constexpr std::size_t kFan = 64;
    struct Extremes {
        float low = std::numeric_limits<float>::infinity(), high = -std::numeric_limits<float>::infinity();
        void take(Extremes other);
    };
    Extremes under(std::size_t level, std::size_t first, std::size_t last) const;
    void rebuild(std::size_t from);

    std::vector<std::int64_t> start_, end_;
    std::vector<float> values_;
    std::vector<std::vector<Extremes>> levels_; // level k: one for 64^(k+1) samples
    Extremes all_;
};

} // namespace kvscope
