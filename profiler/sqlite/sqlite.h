// The only door to SQLite: a connection and a statement that throw Error with a sentence naming the file.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace kvscope {

/// One connection, used by one thread at a time. Move-only. A file may be damaged or hostile, also one that is written:
/// its triggers, views and foreign keys do nothing, its functions are not trusted, its schema is defended.
class Connection {
public:
    enum class Mode {
        ReadOnly,  // no writing SQL
        Immutable, // as ReadOnly, and the file is known not to change: no locks, no -wal, no -shm
        ReadWrite  // creates the file when it is not there
    };
    /// @throws Error(Storage) when the file cannot be opened; most other troubles show up with the first statement
    /// `shownAs`: the file a message names, if it is not `path`
    Connection(const std::string& path, Mode mode, const std::string& shownAs = {});
    ~Connection();
    Connection(Connection&& other) noexcept;
    Connection& operator=(Connection&& other) noexcept;

    /// Runs one or more statements, ignoring their rows.
    void execute(const std::string& sql);
    /// First column of the first row of a statement that gives an integer.
    std::int64_t integer(std::string_view sql);
    const std::string& path() const { return path_; }
    sqlite3* handle() const { return handle_; }
    bool inTransaction() const;

    /// Statements poll the flag and throw Error(Cancelled) once it is true. Null: never. The flag outlives the
    /// connection or the next call.
    void setInterrupt(const std::atomic<bool>* flag);

    /// Throws what `code` means for this file. `doing`: "reading", "writing", "opening".
    [[noreturn]] void fail(int code, const char* doing) const;

private:
    std::string path_;
    sqlite3* handle_ = nullptr;
    bool readOnly_ = true;
};

/// A prepared statement. Parameters count from 1, columns from 0.
class Statement {
public:
    Statement() = default;
    /// `connection` outlives the statement and stays where it is. persistent: it will be run many times.
    Statement(Connection& connection, std::string_view sql, bool persistent = false);
    ~Statement();
    Statement(Statement&& other) noexcept;
    Statement& operator=(Statement&& other) noexcept;

    Statement& bind(int index, std::int64_t value);
    Statement& bind(int index, double value);
    Statement& bind(int index, std::string_view value);               // copied
    Statement& bindBlob(int index, std::span<const std::byte> value); // not copied: must live until the next reset
    Statement& bindNull(int index);
    template <class... Values> Statement& bindAll(const Values&... values) {
        int index = 0;
        (bind(++index, values), ...);
        return *this;
    }
    Statement& bind(int index, int value) { return bind(index, std::int64_t(value)); }
    Statement& bind(int index, bool value) { return bind(index, std::int64_t(value)); }
    Statement& bind(int index, const char* value) = delete; // would silently become a bool

    /// @return true: a row is there; false: done
    bool step();
    /// Runs a statement without rows and makes it ready for the next time.
    void run();
    void reset();

    int columns() const;
    const char* columnName(int column) const;
    enum class Type { Null, Integer, Real, Text, Blob };
    Type type(int column) const;
    bool isNull(int column) const { return type(column) == Type::Null; }
    std::int64_t int64(int column) const;
    /// @throws Error(BadInput) if the number does not fit: the file is damaged
    int int32(int column) const;
    double real(int column) const;
    std::string_view text(int column) const;           // valid until the next step
    std::span<const std::byte> blob(int column) const; // valid until the next step

private:
    Connection* connection_ = nullptr;
    sqlite3_stmt* handle_ = nullptr;
};

} // namespace kvscope
