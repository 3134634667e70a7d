// A user's own SQL on a trace. It is read-only whatever the statement says, can be stopped, and takes bounded memory.
#pragma once

#include "profiler/sql/sql_rows.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

struct SqlColumnInfo {
    std::string name, type, help; // help: from docs/trace-format.md; empty for what it does not describe
};
struct SqlTableInfo {
    std::string name, help;
    bool view = false;
    std::vector<SqlColumnInfo> columns;
};

struct SqlLimits {
    std::size_t rows = 1'000'000;
    std::size_t bytes = std::size_t(256) << 20; // of the rows in memory
};

/// Values of the parameters a statement may name: ":run_id" -> 1.
using SqlParameters = std::map<std::string, std::int64_t, std::less<>>;

struct SqlOutcome {
    std::size_t rows = 0;
    bool truncated = false; // a limit was reached; the rest was not fetched
};

/// One connection; one thread at a time, except for interrupt().
class SqlSession {
public:
    /// @throws Error as openTrace
    explicit SqlSession(const std::string& path);
    ~SqlSession();

    /// Views, which are the interface that stays, then tables; each in the order of its definition.
    std::vector<SqlTableInfo> schema();

    /// Runs one statement. `header` once, then `rows` every so often (at least four times a second while rows come), on
    /// the calling thread.
    /// @throws Error(BadInput) for a statement that is wrong or would change anything: see errorOffset;
    ///         Error(Cancelled) after interrupt; Error(Storage)
    SqlOutcome run(std::string_view sql, const SqlParameters& parameters, const SqlLimits& limits,
                   const std::function<void(const std::vector<std::string>&)>& header,
                   const std::function<void(std::shared_ptr<const SqlRows>)>& rows);

    /// Writes the whole result as CSV (RFC 4180, header line, UTF-8), without the limits and without holding all of it
    /// in memory. `progress` is called with the number of rows now and then. @throws as run, and what `write` throws
    std::size_t writeCsv(std::string_view sql, const SqlParameters& parameters,
                         const std::function<void(std::string_view)>& write,
                         const std::function<void(std::size_t)>& progress = {});

    /// Any thread: the running statement ends with Error(Cancelled), and so does the next if none is running.
    void interrupt();
    /// Forgets an interrupt that hit nothing.
    void rearm();

    /// Byte of the statement where the last wrong one went wrong; -1: not known.
    int errorOffset() const;

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// The part of `text` around byte `position` that is one statement, as {begin, length}: split at semicolons outside of
/// quotes and comments. A position behind the last statement belongs to it.
std::pair<std::size_t, std::size_t> statementAt(std::string_view text, std::size_t position);

/// A CSV field: quoted where it must be.
std::string csvField(std::string_view text);

} // namespace kvscope
