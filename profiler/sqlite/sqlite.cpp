#include "profiler/sqlite/sqlite.h"

#include "base/error.h"

#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <limits>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <utility>

namespace kvscope {
namespace {

// A read is interrupted within this many virtual machine instructions: about 0.1 ms.
constexpr int kInterruptInterval = 2000;
// No value in a trace comes near this; it keeps a damaged length from turning into a huge allocation.
constexpr int kLongestValue = 256 << 20;

bool isOnReadOnlyDisk(const std::string& path) {
    struct statvfs system {};
    const std::size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    return statvfs(folder.c_str(), &system) == 0 && (system.f_flag & ST_RDONLY) != 0;
}

/// Why no file can be made in the folder of `path`, where that is why there is none; else 0. SQLite itself tries to
/// read the file then, and says that it is not there.
int whyNotMade(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    return access(path.c_str(), F_OK) != 0 && access(folder.c_str(), W_OK | X_OK) != 0 ? errno : 0;
}

/// Whether this process may not write files of any size: a write beyond the limit fails as on a broken disk.
bool sizesAreLimited() {
    struct rlimit limit {};
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

/// A file name as a URI: everything but plain characters is escaped.
std::string uriOf(const std::string& path, std::string_view query) {
    std::string uri = "file:";
    for (const char c : path) {
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                           std::strchr("/._-", c) != nullptr;
        if (plain && c != '\0')
            uri += c;
        else
            uri += fmt::format("%{:02x}", unsigned(static_cast<unsigned char>(c)));
    }
    return uri += query;
}

} // namespace

Connection::Connection(const std::string& path, Mode mode, const std::string& shownAs)
    : path_(shownAs.empty() ? path : shownAs), readOnly_(mode != Mode::ReadWrite) {
    const int flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_URI |
                      (readOnly_ ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
    const int code =
        sqlite3_open_v2(uriOf(path, mode == Mode::Immutable ? "?immutable=1" : "").c_str(), &handle_, flags, nullptr);
    try {
        if (code != SQLITE_OK) fail(code, "opening");
        sqlite3_extended_result_codes(handle_, 1);
        sqlite3_busy_timeout(handle_, 5000);
        sqlite3_limit(handle_, SQLITE_LIMIT_LENGTH, kLongestValue);
        // The file's own SQL never runs: no trigger, no view but temporary ones of ours, no foreign key's action, and
        // nothing that changes the schema behind SQLite's back.
        sqlite3_db_config(handle_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
        for (const int off : {SQLITE_DBCONFIG_TRUSTED_SCHEMA, SQLITE_DBCONFIG_ENABLE_TRIGGER,
                              SQLITE_DBCONFIG_ENABLE_VIEW, SQLITE_DBCONFIG_ENABLE_FKEY})
            sqlite3_db_config(handle_, off, 0, nullptr);
        execute("PRAGMA cell_size_check=1");
        if (readOnly_) execute("PRAGMA mmap_size=0; PRAGMA query_only=1");
    } catch (...) {
        sqlite3_close_v2(handle_);
        throw;
    }
}

Connection::~Connection() { sqlite3_close_v2(handle_); }

Connection::Connection(Connection&& other) noexcept
    : path_(std::move(other.path_)), handle_(std::exchange(other.handle_, nullptr)), readOnly_(other.readOnly_) {}

Connection& Connection::operator=(Connection&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(handle_, other.handle_);
    std::swap(readOnly_, other.readOnly_);
    return *this;
}

void Connection::fail(int code, const char* doing) const {
    const std::string detail = handle_ ? sqlite3_errmsg(handle_) : sqlite3_errstr(code);
    int system = handle_ ? sqlite3_system_errno(handle_) : 0;
    switch (code & 0xff) {
    case SQLITE_INTERRUPT:
        throw Error(ErrorKind::Cancelled, fmt::format("{} {} was cancelled", doing, path_));
    case SQLITE_NOMEM:
        throw Error(ErrorKind::OutOfMemory, fmt::format("memory ran out while {} {}", doing, path_));
    case SQLITE_NOTADB:
        throw Error(ErrorKind::BadInput, fmt::format("{} is not a KVScope trace", path_),
                    "choose a file that kvscope-cli run --trace has written");
    case SQLITE_CORRUPT:
        throw Error(ErrorKind::BadInput, fmt::format("{} is damaged ({})", path_, detail),
                    "record it again, or try `sqlite3 FILE .recover`");
    case SQLITE_FULL:
        throw Error(ErrorKind::Storage, fmt::format("the disk is full: {} cannot grow", path_),
                    "free some space or record to another disk");
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        throw Error(ErrorKind::Storage, fmt::format("{} is locked by another program", path_),
                    "close that program or wait until it is done");
    case SQLITE_READONLY:
    case SQLITE_PERM:
        if (isOnReadOnlyDisk(path_))
            throw Error(ErrorKind::Storage, fmt::format("{} cannot be written: its file system is read-only", path_),
                        "choose a folder on another disk");
        throw Error(ErrorKind::Storage, fmt::format("{} cannot be written: it or its folder is read-only", path_),
                    "choose a folder you may write to");
    case SQLITE_CANTOPEN:
        if (!readOnly_ && isOnReadOnlyDisk(path_))
            throw Error(ErrorKind::Storage, fmt::format("{} cannot be written: its file system is read-only", path_),
                        "choose a folder on another disk");
        if (const int reason = readOnly_ ? 0 : whyNotMade(path_); reason != 0) system = reason;
        if (system == EMFILE || system == ENFILE)
            throw Error(ErrorKind::Storage, fmt::format("{} cannot be opened: {}", path_, std::strerror(system)),
                        "allow more open files (ulimit -n)");
        throw Error(
            ErrorKind::Storage,
            fmt::format("{} cannot be opened{}", path_, system ? fmt::format(": {}", std::strerror(system)) : ""),
            readOnly_ ? "check its name and permissions" : "choose a folder you may write to");
    case SQLITE_IOERR:
        throw Error(ErrorKind::Storage,
                    fmt::format("{} {} failed: {}", doing, path_, system ? std::strerror(system) : detail.c_str()),
                    sizesAreLimited() ? "check the disk, and the limit of a file's size (ulimit -f)"
                                      : "check the disk");
    case SQLITE_ERROR:
    case SQLITE_SCHEMA:
    case SQLITE_MISMATCH:
    case SQLITE_TOOBIG:
    case SQLITE_AUTH:
        if (readOnly_) // our own SQL is right, so the file's tables are not what they should be
            throw Error(ErrorKind::BadInput, fmt::format("{} is not a complete KVScope trace ({})", path_, detail),
                        "record it again, or compare its tables with docs/trace-format.md");
        [[fallthrough]];
    default:
        throw Error(ErrorKind::Storage, fmt::format("{} {} failed: {}", doing, path_, detail));
    }
}

void Connection::execute(const std::string& sql) {
    const int code = sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr);
    if (code != SQLITE_OK) fail(code, readOnly_ ? "reading" : "writing");
}

std::int64_t Connection::integer(std::string_view sql) {
    Statement statement(*this, sql);
    return statement.step() ? statement.int64(0) : 0;
}

bool Connection::inTransaction() const { return sqlite3_get_autocommit(handle_) == 0; }

void Connection::setInterrupt(const std::atomic<bool>* flag) {
    const auto poll = [](void* context) -> int {
        return static_cast<const std::atomic<bool>*>(context)->load(std::memory_order_relaxed) ? 1 : 0;
    };
    sqlite3_progress_handler(handle_, kInterruptInterval, flag ? +poll : nullptr,
                             const_cast<void*>(static_cast<const void*>(flag)));
}

Statement::Statement(Connection& connection, std::string_view sql, bool persistent) : connection_(&connection) {
    const int code = sqlite3_prepare_v3(connection.handle(), sql.data(), int(sql.size()),
                                        persistent ? SQLITE_PREPARE_PERSISTENT : 0u, &handle_, nullptr);
    if (code != SQLITE_OK) connection.fail(code, "reading");
}

Statement::~Statement() { sqlite3_finalize(handle_); }

Statement::Statement(Statement&& other) noexcept
    : connection_(other.connection_), handle_(std::exchange(other.handle_, nullptr)) {}

Statement& Statement::operator=(Statement&& other) noexcept {
    std::swap(connection_, other.connection_);
    std::swap(handle_, other.handle_);
    return *this;
}

Statement& Statement::bind(int index, std::int64_t value) {
    sqlite3_bind_int64(handle_, index, value);
    return *this;
}

Statement& Statement::bind(int index, double value) {
    sqlite3_bind_double(handle_, index, value); // SQLite stores NaN as NULL
    return *this;
}

Statement& Statement::bind(int index, std::string_view value) {
    const int code = sqlite3_bind_text64(handle_, index, value.empty() ? "" : value.data(), value.size(),
                                         SQLITE_TRANSIENT, SQLITE_UTF8);
    if (code != SQLITE_OK) connection_->fail(code, "writing");
    return *this;
}

Statement& Statement::bindBlob(int index, std::span<const std::byte> value) {
    const int code = sqlite3_bind_blob64(handle_, index, value.empty() ? "" : static_cast<const void*>(value.data()),
                                         value.size(), SQLITE_STATIC);
    if (code != SQLITE_OK) connection_->fail(code, "writing");
    return *this;
}

Statement& Statement::bindNull(int index) {
    sqlite3_bind_null(handle_, index);
    return *this;
}

bool Statement::step() {
    const int code = sqlite3_step(handle_);
    if (code == SQLITE_ROW) return true;
    if (code != SQLITE_DONE) {
        const bool writes = sqlite3_stmt_readonly(handle_) == 0;
        // fail() reads the connection's message, so the statement is reset afterwards.
        try {
            connection_->fail(code, writes ? "writing" : "reading");
        } catch (...) {
            sqlite3_reset(handle_);
            throw;
        }
    }
    return false;
}

void Statement::run() {
    while (step()) {
    }
    reset();
}

void Statement::reset() { sqlite3_reset(handle_); }

int Statement::columns() const { return sqlite3_column_count(handle_); }
const char* Statement::columnName(int column) const { return sqlite3_column_name(handle_, column); }

Statement::Type Statement::type(int column) const {
    switch (sqlite3_column_type(handle_, column)) {
    case SQLITE_INTEGER:
        return Type::Integer;
    case SQLITE_FLOAT:
        return Type::Real;
    case SQLITE_TEXT:
        return Type::Text;
    case SQLITE_BLOB:
        return Type::Blob;
    default:
        return Type::Null;
    }
}

std::int64_t Statement::int64(int column) const { return sqlite3_column_int64(handle_, column); }

int Statement::int32(int column) const {
    const std::int64_t value = int64(column);
    if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max())
        throw Error(
            ErrorKind::BadInput,
            fmt::format("{} is damaged ({} is {}, out of range)", connection_->path(), columnName(column), value),
            "record it again");
    return int(value);
}

double Statement::real(int column) const { return sqlite3_column_double(handle_, column); }

std::string_view Statement::text(int column) const {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(handle_, column));
    return {bytes ? bytes : "", bytes ? std::size_t(sqlite3_column_bytes(handle_, column)) : 0};
}

std::span<const std::byte> Statement::blob(int column) const {
    const auto* bytes = static_cast<const std::byte*>(sqlite3_column_blob(handle_, column));
    return {bytes, bytes ? std::size_t(sqlite3_column_bytes(handle_, column)) : 0};
}

} // namespace kvscope
