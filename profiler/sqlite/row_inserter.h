// Inserts rows several at a time: most of an INSERT's cost is per statement.
#pragma once

#include "profiler/sqlite/sqlite.h"

#include <cstdint>
#include <fmt/format.h>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvscope {

class RowInserter {
public:
    static constexpr std::size_t kRowsAtOnce = 8;

    /// What happens where a row with the id is there already.
    enum class Twice : std::uint8_t { Fails, Replaces };

    RowInserter() = default;
    /// `columns`: "id, a, b"
    RowInserter(Connection& connection, std::string_view table, std::string_view columns, Twice twice = Twice::Fails) {
        for (const char c : columns) width_ += c == ',' ? 1 : 0;
        std::string row = "(?";
        for (int i = 1; i < width_; ++i) row += ",?";
        row += ")";
        // OR ROLLBACK: the default would keep a copy of every touched page per statement to undo just that. A failed
        // insert ends the recording of a run, so the transaction is rolled back in any case.
        const std::string head = fmt::format("INSERT OR {} INTO {}({}) VALUES ",
                                             twice == Twice::Fails ? "ROLLBACK" : "REPLACE", table, columns);
        std::string rows = row;
        for (std::size_t i = 1; i < kRowsAtOnce; ++i) rows += "," + row;
        single_ = Statement(connection, head + row, true);
        several_ = Statement(connection, head + rows, true);
    }

    /// Exactly this many rows follow.
    void expect(std::size_t rows) {
        expected_ = rows;
        filled_ = 0;
        choose();
    }
    /// Index of the row inside the running statement; what bindBlob is given must live until that has run.
    std::size_t slot() const { return filled_; }
    struct Blob {
        std::span<const std::byte> bytes;
    };
    /// Values of one row in column order: numbers, texts, blobs, or an optional of those. Runs the statement when it is
    /// full.
    template <class... Values> void add(const Values&... values) {
        int index = int(filled_) * width_;
        (put(++index, values), ...);
        --expected_;
        if (++filled_ < rows_) return;
        statement_->run();
        filled_ = 0;
        choose();
    }
    void reset() {
        single_.reset();
        several_.reset();
    }

private:
    void choose() {
        rows_ = expected_ >= kRowsAtOnce ? kRowsAtOnce : 1;
        statement_ = rows_ == 1 ? &single_ : &several_;
    }
    void put(int index, Blob blob) { statement_->bindBlob(index, blob.bytes); }
    template <class Value> void put(int index, const std::optional<Value>& value) {
        if (value)
            put(index, *value);
        else
            statement_->bindNull(index);
    }
    template <class Value> void put(int index, const Value& value) { statement_->bind(index, value); }

    Statement single_, several_;
    Statement* statement_ = nullptr;
    int width_ = 1;
    std::size_t rows_ = 1, filled_ = 0, expected_ = 0;
};

} // namespace kvscope
