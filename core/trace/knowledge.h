// What the program that recorded a run could see. An engine that only knows which blocks it selected writes 0 for hits,
// bytes and times, because the columns cannot be empty; this says that such a 0 means "not known".
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvscope {

/// A group of columns that a writer knows or does not know as a whole.
enum class Known : std::uint8_t {
    Selections,    // selected, kept, rows of `selection`
    Hits,          // hits, misses, the hit flags of a selection's blocks
    Bytes,         // h2d_bytes, d2h_bytes, h2d_blocks, d2h_blocks
    TransferTimes, // transfer_ns, h2d_ns, d2h_ns
    ExposedTimes,  // exposed_ns
    StepTimes,     // start_ns and duration_ns of steps
    StageTimes     // times of the stages, in the layers and beside them
};
inline constexpr int kKnownCount = 7;
/// As they stand in the file: key `knows` of table `run_meta`, one JSON array of these words.
inline constexpr std::array<std::string_view, kKnownCount> kKnownNames{
    "selections", "hits", "bytes", "transfer_times", "exposed_times", "step_times", "stage_times"};

/// A set of Known.
class Knowledge {
public:
    static constexpr Knowledge everything() { return Knowledge((1u << kKnownCount) - 1); }
    static constexpr Knowledge nothing() { return Knowledge(0); }
    constexpr Knowledge() : Knowledge(everything()) {}

    constexpr bool has(Known what) const { return (bits_ >> unsigned(what) & 1u) != 0; }
    constexpr Knowledge with(Known what) const { return Knowledge(bits_ | 1u << unsigned(what)); }
    constexpr Knowledge without(Known what) const { return Knowledge(bits_ & ~(1u << unsigned(what))); }
    constexpr bool covers(Knowledge needed) const { return (needed.bits_ & ~unsigned(bits_)) == 0; }
    friend constexpr bool operator==(Knowledge, Knowledge) = default;

    /// The groups in words, for people: "selections, hits". missing: the groups that the writer does not know.
    std::string list(bool missing = false) const;
    /// ["selections","hits", ...]
    std::string toJson() const;
    /// The inverse. Words that this version does not have are passed over. Nothing if it is no JSON array of texts.
    static std::optional<Knowledge> parse(std::string_view json);

private:
    constexpr explicit Knowledge(unsigned bits) : bits_(std::uint8_t(bits)) {}
    std::uint8_t bits_;
};

} // namespace kvscope
