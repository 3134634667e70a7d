// Rows of a query as they came: compact, immutable once handed on, so that a view can read them while more arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

enum class SqlType : std::uint8_t { Null, Integer, Real, Text, Blob };

/// Some consecutive rows. Filled by one thread, then only read.
class SqlRows {
public:
    explicit SqlRows(int columns) : columns_(columns) {}
    void addNull() { add(SqlType::Null, {}); }
    void addInteger(std::int64_t value);
    void addReal(double value);
    void addBytes(SqlType type, std::string_view bytes); // Text or Blob

    std::size_t rows() const { return types_.size() / std::size_t(columns_); }
    std::size_t bytes() const { return cells_.size() * sizeof(Cell) + types_.size() + text_.size(); }
    SqlType type(std::size_t row, int column) const { return types_[at(row, column)]; }
    std::int64_t integer(std::size_t row, int column) const { return cells_[at(row, column)].integer; }
    /// The number of an integer or real; NaN for anything else.
    double number(std::size_t row, int column) const;
    std::string_view text(std::size_t row, int column) const; // of text and blobs

private:
    union Cell {
        std::int64_t integer;
        double real;
        struct {
            std::uint32_t begin, length;
        } text;
    };
    std::size_t at(std::size_t row, int column) const { return row * std::size_t(columns_) + std::size_t(column); }
    void add(SqlType type, Cell cell) { types_.push_back(type), cells_.push_back(cell); }

    int columns_;
    std::vector<SqlType> types_;
    std::vector<Cell> cells_;
    std::string text_;
};

/// All rows of a query that have come so far.
class SqlTable {
public:
    void reset(std::vector<std::string> columns);
    void append(std::shared_ptr<const SqlRows> rows);
    const std::vector<std::string>& columns() const { return columns_; }
    std::size_t rows() const { return ends_.empty() ? 0 : ends_.back(); }

    struct Place {
        const SqlRows* rows;
        std::size_t row;
    };
    Place at(std::size_t row) const;
    SqlType type(std::size_t row, int column) const;
    double number(std::size_t row, int column) const;
    /// As people and CSV read it: numbers in full, NULL empty, blobs as X'..' (cut after 32 bytes if `shortened`).
    std::string text(std::size_t row, int column, bool shortened = false) const;
    /// Rows in the order of a column: NULL, then numbers, text, blobs, as SQLite sorts; equal ones stay in their order.
    std::vector<std::uint32_t> order(int column, bool descending) const;

private:
    std::vector<std::string> columns_;
    std::vector<std::shared_ptr<const SqlRows>> parts_;
    std::vector<std::size_t> ends_; // rows up to and with each part
};

/// A cell as in SqlTable::text.
std::string sqlText(SqlType type, std::int64_t integer, double real, std::string_view bytes, bool shortened = false);

} // namespace kvscope
