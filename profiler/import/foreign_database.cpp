#include "profiler/import/foreign_database.h"

#include "base/error.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

namespace kvscope {

int ForeignRow::indexOf(std::string_view column) const {
    const auto found = std::find(columns_.begin(), columns_.end(), column);
    return found == columns_.end() ? -1 : int(found - columns_.begin());
}

bool ForeignRow::has(std::string_view column) const {
    const int index = indexOf(column);
    return index >= 0 && !statement_->isNull(index);
}

std::int64_t ForeignRow::integer(std::string_view column) const {
    const int index = indexOf(column);
    return index >= 0 ? statement_->int64(index) : 0;
}

double ForeignRow::real(std::string_view column) const {
    const int index = indexOf(column);
    return index >= 0 ? statement_->real(index) : 0;
}

Statement::Type ForeignRow::type(std::string_view column) const {
    const int index = indexOf(column);
    return index >= 0 ? statement_->type(index) : Statement::Type::Null;
}

std::string_view ForeignRow::text(std::string_view column) const {
    const int index = indexOf(column);
    return index >= 0 ? statement_->text(index) : std::string_view();
}

ForeignDatabase::ForeignDatabase(const std::string& path, const std::stop_token& stop)
    : path_(path), connection_(path, Connection::Mode::Immutable), onStop_(stop, [this] { cancelled_ = true; }) {
    connection_.setInterrupt(&cancelled_);
}

void ForeignDatabase::requireWhole() {
    const std::int64_t wanted = connection_.integer("PRAGMA page_count") * connection_.integer("PRAGMA page_size");
    std::error_code failure;
    const auto bytes = std::filesystem::file_size(path_, failure);
    if (!failure && std::int64_t(bytes) < wanted)
        throw Error(ErrorKind::BadInput,
                    fmt::format("{} is damaged (it is cut short: {} of {} bytes)", path_, bytes, wanted),
                    "copy or export it again");
}

bool ForeignDatabase::hasTable(std::string_view name) {
    Statement find(connection_, "SELECT 1 FROM sqlite_schema WHERE type='table' AND name=?");
    return find.bind(1, name).step();
}

bool ForeignDatabase::hasRows(std::string_view table) {
    return hasTable(table) && connection_.integer(fmt::format("SELECT 1 FROM \"{}\" LIMIT 1", table)) == 1;
}

void ForeignDatabase::read(std::string_view table, const std::vector<std::string_view>& columns,
                           const std::function<void(const ForeignRow&)>& take, std::string_view orderBy) {
    if (!hasTable(table)) return;
    std::set<std::string, std::less<>> present;
    Statement info(connection_, "SELECT name FROM pragma_table_info(?)");
    for (info.bind(1, table); info.step();) present.insert(std::string(info.text(0)));
    ForeignRow row;
    for (const std::string_view column : columns)
        if (present.contains(column)) row.columns_.push_back(column);
    if (row.columns_.empty()) return;
    const bool ordered = present.contains(orderBy);
    Statement rows(connection_, fmt::format("SELECT \"{}\" FROM \"{}\"{}", fmt::join(row.columns_, "\", \""), table,
                                            ordered ? fmt::format(" ORDER BY \"{}\"", orderBy) : std::string()));
    row.statement_ = &rows;
    while (rows.step()) take(row);
}

std::optional<std::string> ForeignDatabase::string(std::int64_t id) {
    if (!findString_) {
        if (!hasTable("StringIds")) return std::nullopt;
        findString_.emplace(connection_, "SELECT value FROM StringIds WHERE id=?", true);
    }
    findString_->reset();
    findString_->bind(1, id);
    if (!findString_->step()) return std::nullopt;
    return std::string(findString_->text(0));
}

} // namespace kvscope
