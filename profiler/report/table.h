// A report is tables first: typed cells that know their unit and how they are known. HTML, PDF and CSV write the same
// ones, so a number cannot differ between them.
#pragma once

#include "profiler/format/run_fact.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kvscope::reports {

/// What a number counts, which decides how people read it. CSV holds it in the unit named here.
enum class Quantity : std::uint8_t { Text, Count, Nanoseconds, Bytes, Share, Ratio, PerSecond, GigabytesPerSecond };
/// "ns", "B", "fraction", ...; empty for text.
std::string_view unitOf(Quantity quantity);

/// How a value is known. Plain: it was counted, configured or computed from the trace alone.
enum class Basis : std::uint8_t { Plain, Measured, Modelled, Predicted };
/// "measured", "modelled", "predicted"; empty for Plain.
std::string_view nameOf(Basis basis);
/// The basis of a run's transfer times; Plain where the trace has an unknown word.
Basis basisOf(const RunFact<Timing>& timing);

struct Cell {
    std::variant<std::monostate, std::int64_t, double, std::string> value; // monostate: undefined
    Quantity quantity = Quantity::Text;
    Basis basis = Basis::Plain;
    bool notKnown = false; // no value because the run does not know it
    bool isNumber() const { return value.index() == 1 || value.index() == 2; }
    double number() const; // NaN unless it is one
};

Cell text(std::string value);
Cell count(std::int64_t value);
/// NaN becomes undefined.
Cell real(double value, Quantity quantity, Basis basis = Basis::Plain);
Cell nanoseconds(double value, Basis basis = Basis::Measured);
Cell whole(std::int64_t value, Quantity quantity, Basis basis = Basis::Plain);
/// A number that the run does not know: "not known" for people, empty for programs.
Cell notKnown(Quantity quantity, Basis basis = Basis::Plain);

/// As people read it: "4.56 ms", "97.3 %", "1,234"; "–" when undefined.
std::string display(const Cell& cell);
/// As programs read it: all digits, no unit; empty when undefined.
std::string raw(const Cell& cell);
/// A value beside the same quantity: "12.3 µs".
std::string display(double value, Quantity quantity);

struct Column {
    std::string id;    // of the CSV, e.g. "total_ns"
    std::string title; // above the column, e.g. "Total"
    std::string help;  // what the numbers are over; may be empty
    bool csvOnly = false;
};

struct Table {
    std::string id;    // file name and anchor, e.g. "breakdown"
    std::string title; // e.g. "Where decode time goes"
    std::string about; // one or two sentences for somebody who did not make it
    std::vector<Column> columns;
    std::vector<std::vector<Cell>> rows;

    int columnAt(std::string_view columnId) const; // -1: none
    /// First row whose cell in `keyColumn` reads `key`; null if none.
    const std::vector<Cell>* find(std::string_view keyColumn, std::string_view key) const;
};

/// RFC 4180 with a header line of column ids, raw values.
std::string csv(const Table& table);

} // namespace kvscope::reports
