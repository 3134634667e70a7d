// A SQLite file of another program: tables and columns are asked for by name, and may be missing or hold anything.
#pragma once

#include "profiler/store/sqlite.h"

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
    /// Not there, or NULL: false. What has() denies is 0 or empty.
    bool has(std::string_view column) const;
    std::int64_t integer(std::string_view column) const;
    double real(std::string_view column) const;
    std::string_view text(std::string_view column) const; // until the next row
    Statement::Type type(std::string_view column) const;  // Null where has() denies it

private:
    friend class ForeignDatabase;
    int indexOf(std::string_view column) const;
    const Statement* statement_ = nullptr;
    std::vector<std::string_view> columns_; // those that the table has, in the order of the statement
};

class ForeignDatabase {
public:
    /// Reads only, leaves no file beside it. @throws Error(Storage)
    ForeignDatabase(const std::string& path, const std::stop_token& stop);

    /// @throws Error(BadInput) if the file is shorter than it says
    void requireWhole();
    bool hasTable(std::string_view name); // a view of that name does not count: it could run for ever
    bool hasRows(std::string_view table);
    /// Those of `columns` that the table has, row by row; nothing if there is no such table.
    /// @throws Error(BadInput | Cancelled), and what `take` throws
    void read(std::string_view table, const std::vector<std::string_view>& columns,
              const std::function<void(const ForeignRow&)>& take, std::string_view orderBy = {});
    /// StringIds.value; absent: there is none.
    std::optional<std::string> string(std::int64_t id);

private:
    std::string path_;
    std::atomic<bool> cancelled_{false};
    Connection connection_;
    std::optional<Statement> findString_;
    std::stop_callback<std::function<void()>> onStop_;
};

} // namespace kvscope
