// Runs plain SQL on a trace as the sqlite3 program would, with no function or setting of ours.
#pragma once

#include <sqlite3.h>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvscope::test {

struct SqlRows {
    std::vector<std::string> columns;
    std::vector<std::vector<std::string>> rows; // NULL reads "NULL"
};

inline SqlRows sql(const std::string& path, const std::string& query, int flags = SQLITE_OPEN_READONLY) {
    sqlite3* database = nullptr;
    sqlite3_stmt* statement = nullptr;
    SqlRows result;
    std::string trouble;
    if (sqlite3_open_v2(path.c_str(), &database, flags, nullptr) != SQLITE_OK) trouble = sqlite3_errmsg(database);
    sqlite3_busy_timeout(database, 10'000); // the program may be reading the file at this moment
    const char* rest = query.c_str();
    while (trouble.empty() && rest && *rest) {
        if (sqlite3_prepare_v2(database, rest, -1, &statement, &rest) != SQLITE_OK) {
            trouble = sqlite3_errmsg(database);
            break;
        }
        if (!statement) break;
        for (int i = int(result.columns.size()); i < sqlite3_column_count(statement); ++i)
            result.columns.emplace_back(sqlite3_column_name(statement, i));
        int code = 0;
        while ((code = sqlite3_step(statement)) == SQLITE_ROW) {
            auto& row = result.rows.emplace_back();
            for (int i = 0; i < sqlite3_column_count(statement); ++i) {
                const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement, i));
                row.emplace_back(text ? std::string(text, std::size_t(sqlite3_column_bytes(statement, i))) : "NULL");
            }
        }
        if (code != SQLITE_DONE) trouble = sqlite3_errmsg(database);
        sqlite3_finalize(statement);
    }
    sqlite3_close(database);
    if (!trouble.empty()) throw std::runtime_error(query + ": " + trouble);
    return result;
}

inline std::string value(const std::string& path, const std::string& query) {
    const SqlRows result = sql(path, query);
    return result.rows.size() == 1 && result.rows[0].size() == 1 ? result.rows[0][0]
                                                                 : std::to_string(result.rows.size()) + " rows";
}

} // namespace kvscope::test
