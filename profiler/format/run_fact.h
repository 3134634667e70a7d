// What a trace says of its run in one word of a short list. The word is parsed once, when the run is read, and then
// compared as a value. A word that is not in the list, because another engine or a later version wrote it, is kept as
// text.
#pragma once

#include "core/trace/serving_record.h"
#include "core/trace/trace_sink.h"

#include <array>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

namespace kvscope {

/// Where the steps of a run were computed.
enum class RunBackend : std::uint8_t { Cpu, Cuda, Imported }; // Imported: on what another tool has recorded
constexpr const char* nameOf(RunBackend backend) {
    return backend == RunBackend::Cpu ? "cpu" : backend == RunBackend::Cuda ? "cuda" : "imported";
}

/// Every value that a run's fact of type E may have.
template <class E> inline constexpr std::array<E, 0> kFactsOf{};
template <> inline constexpr std::array kFactsOf<RunBackend>{RunBackend::Cpu, RunBackend::Cuda, RunBackend::Imported};
template <> inline constexpr std::array kFactsOf<Timing>{Timing::Measured, Timing::Modelled};
template <>
inline constexpr std::array kFactsOf<RunStatus>{RunStatus::Running, RunStatus::Finished, RunStatus::Stopped,
                                                RunStatus::Failed};
template <>
inline constexpr std::array kFactsOf<RecordLevel>{RecordLevel::Counters, RecordLevel::Selections, RecordLevel::Full};

template <>
inline constexpr std::array kFactsOf<ServedStatus>{
    ServedStatus::Queued, ServedStatus::Prefill,   ServedStatus::Decode,  ServedStatus::Paused, ServedStatus::Stop,
    ServedStatus::Length, ServedStatus::Cancelled, ServedStatus::Refused, ServedStatus::Failed};

template <class E> class RunFact {
public:
    RunFact() = default; // not read yet
    RunFact(E value) : value_(value), text_(nameOf(value)) {}
    static RunFact parse(std::string_view text) {
        for (const E value : kFactsOf<E>)
            if (text == nameOf(value)) return value;
        RunFact unknown;
        unknown.text_ = text;
        return unknown;
    }

    /// The value; nothing where the trace has no word, or one that is not in the list.
    const std::optional<E>& value() const { return value_; }
    /// The word that the trace has; empty: not read yet.
    const std::string& text() const { return text_; }

    friend bool operator==(const RunFact&, const RunFact&) = default;
    friend bool operator==(const RunFact& fact, E value) { return fact.value_ == value; }
    friend std::ostream& operator<<(std::ostream& out, const RunFact& fact) { return out << fact.text_; }

private:
    std::optional<E> value_;
    std::string text_;
};

} // namespace kvscope
