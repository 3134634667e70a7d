#include "profiler/sql/sql_rows.h"

#include "base/utf8.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <numeric>

namespace kvscope {

void SqlRows::addInteger(std::int64_t value) {
    Cell cell;
    cell.integer = value;
    add(SqlType::Integer, cell);
}

void SqlRows::addReal(double value) {
    Cell cell;
    cell.real = value;
    add(SqlType::Real, cell);
}

void SqlRows::addBytes(SqlType type, std::string_view bytes) {
    Cell cell;
    cell.text = {std::uint32_t(text_.size()), std::uint32_t(bytes.size())};
    text_ += bytes;
    add(type, cell);
}

double SqlRows::number(std::size_t row, int column) const {
    switch (type(row, column)) {
    case SqlType::Integer:
        return double(cells_[at(row, column)].integer);
    case SqlType::Real:
        return cells_[at(row, column)].real;
    default:
        return std::numeric_limits<double>::quiet_NaN();
    }
}

std::string_view SqlRows::text(std::size_t row, int column) const {
    const SqlType kind = type(row, column);
    if (kind != SqlType::Text && kind != SqlType::Blob) return {};
    const Cell& cell = cells_[at(row, column)];
    return std::string_view(text_).substr(cell.text.begin, cell.text.length);
}

void SqlTable::reset(std::vector<std::string> columns) {
    columns_ = std::move(columns);
    parts_.clear();
    ends_.clear();
}

void SqlTable::append(std::shared_ptr<const SqlRows> rows) {
    if (!rows || rows->rows() == 0) return;
    ends_.push_back(this->rows() + rows->rows());
    parts_.push_back(std::move(rows));
}

SqlTable::Place SqlTable::at(std::size_t row) const {
    const auto part = std::size_t(std::upper_bound(ends_.begin(), ends_.end(), row) - ends_.begin());
    return {parts_[part].get(), row - (part == 0 ? 0 : ends_[part - 1])};
}

SqlType SqlTable::type(std::size_t row, int column) const {
    const Place place = at(row);
    return place.rows->type(place.row, column);
}

double SqlTable::number(std::size_t row, int column) const {
    const Place place = at(row);
    return place.rows->number(place.row, column);
}

std::string SqlTable::text(std::size_t row, int column, bool shortened) const {
    const Place place = at(row);
    const SqlType type = place.rows->type(place.row, column);
    return sqlText(type, type == SqlType::Integer ? place.rows->integer(place.row, column) : 0,
                   place.rows->number(place.row, column), place.rows->text(place.row, column), shortened);
}

std::vector<std::uint32_t> SqlTable::order(int column, bool descending) const {
    std::vector<std::uint32_t> rows(this->rows());
    std::iota(rows.begin(), rows.end(), 0U);
    // Looked up once: a comparison would search for its part of the table every time.
    std::vector<Place> places;
    places.reserve(rows.size());
    for (const auto& part : parts_)
        for (std::size_t row = 0; row < part->rows(); ++row) places.push_back({part.get(), row});
    const auto rank = [](SqlType type) {
        return type == SqlType::Null ? 0 : type == SqlType::Text ? 2 : type == SqlType::Blob ? 3 : 1;
    };
    const auto less = [&](std::uint32_t x, std::uint32_t y) {
        const Place &a = places[x], &b = places[y];
        const SqlType ta = a.rows->type(a.row, column), tb = b.rows->type(b.row, column);
        if (rank(ta) != rank(tb)) return rank(ta) < rank(tb);
        if (rank(ta) == 0) return false;
        if (ta == SqlType::Integer && tb == SqlType::Integer)
            return a.rows->integer(a.row, column) < b.rows->integer(b.row, column);
        if (rank(ta) == 1) return a.rows->number(a.row, column) < b.rows->number(b.row, column);
        return a.rows->text(a.row, column) < b.rows->text(b.row, column);
    };
    if (descending)
        std::stable_sort(rows.begin(), rows.end(), [&](std::uint32_t x, std::uint32_t y) { return less(y, x); });
    else
        std::stable_sort(rows.begin(), rows.end(), less);
    return rows;
}

std::string sqlText(SqlType type, std::int64_t integer, double real, std::string_view bytes, bool shortened) {
    constexpr std::size_t kShown = 32;
    switch (type) {
    case SqlType::Null:
        return {};
    case SqlType::Integer:
        return fmt::format("{}", integer);
    case SqlType::Real:
        return fmt::format("{}", real); // the shortest text that reads back as the same number
    case SqlType::Text:
        return toValidUtf8(bytes);
    case SqlType::Blob:
        break;
    }
    const bool cut = shortened && bytes.size() > kShown;
    std::string hex = "X'";
    for (const char c : cut ? bytes.substr(0, kShown) : bytes)
        hex += fmt::format("{:02X}", unsigned(static_cast<unsigned char>(c)));
    return hex + (cut ? fmt::format("...' ({} bytes)", bytes.size()) : "'");
}

} // namespace kvscope
