// Reads a SQLite file that another program wrote. The importer asks for tables and columns by name; each of them may be
// missing, and a value may be of any type.
#pragma once

#include "profiler/sqlite/sqlite.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

class ForeignRow {
public:
    /// False if the table has no such column or the row's value is NULL; integer and real are 0 then, text is empty.
    bool has(std::string_view column) const;
    std::int64_t integer(std::string_view column) const;
    double real(std::string_view column) const;
    std::string_view text(std::string_view column) const; // valid until the next row is read
    Statement::Type type(std::string_view column) const;  // Null where has() denies it

private:
    friend class ForeignDatabase;
    int indexOf(std::string_view column) const;
    const Statement* statement_ = nullptr;
    std::vector<std::string_view> columns_; // the wanted columns that the table has, in the order of the SELECT
};

class ForeignDatabase {
public:
    /// Opens the file for reading, and leaves no journal or lock file beside it. @throws Error(Storage)
    ForeignDatabase(const std::string& path, const std::stop_token& stop);

    /// @throws Error(BadInput) if the file is shorter than the page count in its own header says
    void requireWhole();
    bool hasTable(std::string_view name); // false for an SQL view of that name: its query could run for ever
    bool hasRows(std::string_view table);
    /// Hands every row of the table to `take`, with those of `columns` that the table has. Does nothing if there is no
    /// such table or it has none of the columns. Sorts the rows by `orderBy` if the table has that column.
    /// @throws Error(BadInput | Cancelled), and what `take` throws
    void read(std::string_view table, const std::vector<std::string_view>& columns,
              const std::function<void(const ForeignRow&)>& take, std::string_view orderBy = {});
    /// The text with this id in Nsight's table StringIds; absent if the table or the id is missing.
    std::optional<std::string> string(std::int64_t id);

private:
    std::string path_;
    std::atomic<bool> cancelled_{false};
    Connection connection_;
    std::optional<Statement> findString_;
    std::stop_callback<std::function<void()>> onStop_;
};

} // namespace kvscope
