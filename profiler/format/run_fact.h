// What a trace says of its run in one word of a short list: parsed once, when the run is read, and compared as a value.
// A word that is on no list of ours, of another engine or a later version, is kept as it is.
#pragma once

#include "core/trace/trace_sink.h"

#include <array>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

namespace kvscope {

/// Where the steps of a run were computed.
enum class RunBackend : std::uint8_t { Cpu, Cuda, Imported }; // Imported: by whatever another tool has recorded
constexpr const char* nameOf(RunBackend backend) {
    return backend == RunBackend::Cpu ? "cpu" : backend == RunBackend::Cuda ? "cuda" : "imported";
}

/// Every value of an enum that a run's fact may have.
template <class E> inline constexpr std::array<E, 0> kFactsOf{};
template <> inline constexpr std::array kFactsOf<RunBackend>{RunBackend::Cpu, RunBackend::Cuda, RunBackend::Imported};
template <> inline constexpr std::array kFactsOf<Timing>{Timing::Measured, Timing::Modelled};
template <>
inline constexpr std::array kFactsOf<RunStatus>{RunStatus::Running, RunStatus::Finished, RunStatus::Stopped,
                                                RunStatus::Failed};
template <>
inline constexpr std::array kFactsOf<RecordLevel>{RecordLevel::Counters, RecordLevel::Selections, RecordLevel::Full};

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

    /// Nothing: a word that is not ours, or none.
    const std::optional<E>& value() const { return value_; }
    /// As the trace says it; empty: not read yet.
    const std::string& text() const { return text_; }

    friend bool operator==(const RunFact&, const RunFact&) = default;
    friend bool operator==(const RunFact& fact, E value) { return fact.value_ == value; }
    friend std::ostream& operator<<(std::ostream& out, const RunFact& fact) { return out << fact.text_; }

private:
    std::optional<E> value_;
    std::string text_;
};

} // namespace kvscope
