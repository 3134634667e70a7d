#include "profiler/report/table.h"

#include "profiler/export/line_writer.h"

#include <array>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <sstream>

namespace kvscope::reports {
namespace {

/// About three digits, without zeros at the end.
std::string digits(double value) {
    const double size = std::abs(value);
    if (size == 0) return "0";
    const int decimals = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : size >= 0.01 ? 3 : 4;
    std::string out = fmt::format("{:.{}f}", value, decimals);
    if (out.find('.') != std::string::npos) {
        out.erase(out.find_last_not_of('0') + 1);
        if (out.back() == '.') out.pop_back();
    }
    return out == "-0" ? "0" : out;
}

std::string grouped(std::int64_t value) {
    std::string out = fmt::format("{}", value < 0 ? -value : value);
    for (int at = int(out.size()) - 3; at > 0; at -= 3) out.insert(std::size_t(at), 1, ',');
    return value < 0 ? "-" + out : out;
}

struct Step {
    double factor;
    const char* name;
};

/// The value in the largest unit in which it is at least 1.
template <std::size_t N> std::string scaled(double value, const std::array<Step, N>& steps) {
    for (const Step& step : steps)
        if (std::abs(value) >= step.factor) return digits(value / step.factor) + " " + step.name;
    return digits(value) + " " + steps.back().name;
}

constexpr std::array kTimes{Step{1e9, "s"}, Step{1e6, "ms"}, Step{1e3, "µs"}, Step{1, "ns"}};
constexpr std::array kSizes{Step{double(1LL << 40), "TiB"}, Step{double(1 << 30), "GiB"}, Step{1 << 20, "MiB"},
                            Step{1 << 10, "KiB"}, Step{1, "B"}};

} // namespace

std::string_view unitOf(Quantity quantity) {
    constexpr std::string_view names[] = {"", "count", "ns", "B", "fraction", "ratio", "1/s", "GB/s"};
    return names[int(quantity)];
}

std::string_view nameOf(Basis basis) {
    constexpr std::string_view names[] = {"", "measured", "modelled", "predicted"};
    return names[int(basis)];
}

Basis basisOf(const RunFact<Timing>& timing) {
    return timing == Timing::Measured ? Basis::Measured : timing == Timing::Modelled ? Basis::Modelled : Basis::Plain;
}

double Cell::number() const {
    if (const auto* integer = std::get_if<std::int64_t>(&value)) return double(*integer);
    if (const auto* fraction = std::get_if<double>(&value)) return *fraction;
    return std::numeric_limits<double>::quiet_NaN();
}

Cell text(std::string value) { return {std::move(value), Quantity::Text, Basis::Plain, false}; }
Cell count(std::int64_t value) { return {value, Quantity::Count, Basis::Plain, false}; }
Cell whole(std::int64_t value, Quantity quantity, Basis basis) { return {value, quantity, basis, false}; }
Cell notKnown(Quantity quantity, Basis basis) { return {{}, quantity, basis, true}; }
Cell nanoseconds(double value, Basis basis) { return real(value, Quantity::Nanoseconds, basis); }
Cell real(double value, Quantity quantity, Basis basis) {
    if (!std::isfinite(value)) return {{}, quantity, basis, false};
    return {value, quantity, basis, false};
}

std::string display(double value, Quantity quantity) {
    if (!std::isfinite(value)) return "–";
    switch (quantity) {
    case Quantity::Nanoseconds:
        return scaled(value, kTimes);
    case Quantity::Bytes:
        return scaled(value, kSizes);
    case Quantity::Share:
        return fmt::format("{:.{}f} %", value * 100, std::abs(value) < 0.01 && value != 0 ? 2 : 1);
    case Quantity::Ratio:
        return fmt::format("{:.3f}", value);
    case Quantity::GigabytesPerSecond:
        return digits(value) + " GB/s";
    case Quantity::Count:
        if (value == std::floor(value) && std::abs(value) < 1e15) return grouped(std::int64_t(value));
        return digits(value);
    case Quantity::PerSecond:
    case Quantity::Text:
        break;
    }
    return digits(value);
}

std::string display(const Cell& cell) {
    if (const auto* words = std::get_if<std::string>(&cell.value)) return words->empty() ? "–" : *words;
    if (cell.notKnown) return "not known";
    return display(cell.number(), cell.quantity);
}

std::string raw(const Cell& cell) {
    if (const auto* words = std::get_if<std::string>(&cell.value)) return *words;
    if (const auto* integer = std::get_if<std::int64_t>(&cell.value)) return fmt::format("{}", *integer);
    if (const auto* fraction = std::get_if<double>(&cell.value)) return fmt::format("{}", *fraction);
    return {};
}

int Table::columnAt(std::string_view columnId) const {
    for (std::size_t i = 0; i < columns.size(); ++i)
        if (columns[i].id == columnId) return int(i);
    return -1;
}

const std::vector<Cell>* Table::find(std::string_view keyColumn, std::string_view key) const {
    const int column = columnAt(keyColumn);
    if (column < 0) return nullptr;
    for (const auto& row : rows)
        if (raw(row[std::size_t(column)]) == key) return &row;
    return nullptr;
}

std::string csv(const Table& table) {
    std::ostringstream out;
    LineWriter writer(out);
    for (std::size_t i = 0; i < table.columns.size(); ++i) {
        if (i > 0) writer.addText(",");
        writer.addCsv(table.columns[i].id);
    }
    writer.addText("\n");
    for (const auto& row : table.rows) {
        for (std::size_t i = 0; i < row.size(); ++i) {
            if (i > 0) writer.addText(",");
            writer.addCsv(raw(row[i]));
        }
        writer.addText("\n");
    }
    writer.flush();
    return out.str();
}

} // namespace kvscope::reports
