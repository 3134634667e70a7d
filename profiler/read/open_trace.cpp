#include "profiler/read/open_trace.h"

#include "base/error.h"
#include "profiler/format/trace_keys.h"
#include "profiler/import/byte_source.h"
#include "profiler/import/import.h"
#include "profiler/read/own_views.h"
#include "profiler/read/trace_head.h"

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <optional>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvscope {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolderName = "kvscope-XXXXXX";
constexpr const char* kFolderLock = "/lock";
constexpr std::time_t kSurelyLocked = 5; // seconds after it was made

constexpr std::uintmax_t kRoomForShm = 1 << 20; // the index of a log of 64 MiB takes a few 32 KiB pages

void check(Connection& connection) {
    const std::string& path = connection.path();
    if (connection.integer("PRAGMA page_count") == 0)
        throw Error(ErrorKind::BadInput, fmt::format("{} is empty: nothing was recorded", path), "record it again");
    if (connection.integer("PRAGMA application_id") != trace::kApplicationId)
        throw Error(ErrorKind::BadInput, fmt::format("{} is a SQLite database but not a KVScope trace", path),
                    "choose a file that kvscope-cli run --trace has written");
    const std::int64_t version = connection.integer("PRAGMA user_version");
    if (version > trace::kVersion)
        throw Error(ErrorKind::BadInput,
                    fmt::format("{} has trace format {}, this program reads up to {}", path, version, trace::kVersion),
                    "update KVScope");
    if (version < 1)
        throw Error(ErrorKind::BadInput, fmt::format("{} has no trace format number", path), "record it again");
    // Tables must be tables. A view of such a name is refused, because a view in a foreign file could run for ever.
    for (const char* table : {"run", "health", "prompt", "step", "layer_step", "selection", "token", "text", "span"}) {
        Statement find(connection, "SELECT 1 FROM sqlite_schema WHERE type='table' AND rootpage>0 AND name=?");
        find.bind(1, std::string_view(table));
        if (!find.step())
            throw Error(ErrorKind::BadInput, fmt::format("{} is damaged (it has no table {})", path, table),
                        "record it again");
    }
}

/// Refuses a file that is shorter than its pages. SQLite fills a last page that is cut short with zeros and may not
/// notice. A file with a log (-wal) beside it may be short. @throws Error(BadInput)
void checkLength(Connection& connection, const std::string& path) {
    std::error_code failure;
    if (fs::file_size(path + "-wal", failure) > 0 && !failure) return;
    const std::int64_t wanted = connection.integer("PRAGMA page_count") * connection.integer("PRAGMA page_size");
    const auto bytes = fs::file_size(path, failure);
    if (!failure && std::int64_t(bytes) < wanted)
        throw Error(ErrorKind::BadInput,
                    fmt::format("{} is damaged (it is cut short: {} of {} bytes)", connection.path(), bytes, wanted),
                    "copy or record it again");
}

OpenTrace openAs(const std::string& path, Connection::Mode mode, const std::string& shownAs = {}) {
    OpenTrace trace;
    trace.connection = std::make_unique<Connection>(path, mode, shownAs);
    check(*trace.connection);
    checkLength(*trace.connection, path);
    trace.connection->execute("PRAGMA query_only=0"); // for temporary views only: the file is open for reading
    useOwnViews(*trace.connection);
    trace.connection->execute("PRAGMA query_only=1");
    return trace;
}

/// Whether a file that is not empty lies beside the trace.
bool hasBeside(const std::string& path, const char* suffix) {
    std::error_code failure;
    return fs::file_size(path + suffix, failure) > 0 && !failure;
}

/// Takes back a change that a killed program began and SQLite's journal beside the file undoes.
void rollBack(const std::string& path, const std::string& shownAs) {
    Connection(path, Connection::Mode::ReadWrite, shownAs).integer("SELECT count(*) FROM sqlite_schema");
}

OpenTrace openCopy(const std::string& path) {
    auto folder = std::make_unique<TemporaryFolder>();
    const std::string copy = folder->path() + "/trace.kvtrace";
    for (const char* suffix : {"", "-wal", "-journal"}) {
        if (*suffix != '\0' && !hasBeside(path, suffix)) continue;
        std::error_code failure;
        fs::copy_file(path + suffix, copy + suffix, failure);
        if (failure)
            throw Error(
                ErrorKind::Storage,
                fmt::format(
                    "{} was left unfinished in a folder that cannot be written, and copying it to {} failed: {}", path,
                    folder->path(), failure.message()),
                "copy it and the files beside it whose names begin with its own to a folder you may write to");
        fs::permissions(copy + suffix, fs::perms::owner_write, fs::perm_options::add, failure);
    }
    if (hasBeside(copy, "-journal")) rollBack(copy, path);
    OpenTrace trace = openAs(copy, Connection::Mode::ReadOnly, path);
    trace.copy = std::move(folder);
    return trace;
}

/// Removes temporary folders of this user that nobody has locked: the programs that made them are gone.
void removeLeftFolders(const fs::path& base) {
    std::error_code ignored;
    const std::string_view shape(kFolderName);
    const std::string_view begin = shape.substr(0, shape.find('X'));
    for (fs::directory_iterator entry(base, ignored), end; !ignored && entry != end; entry.increment(ignored)) {
        const std::string name = entry->path().filename().string();
        struct stat status {};
        if (name.size() != shape.size() || !name.starts_with(begin) || lstat(entry->path().c_str(), &status) != 0 ||
            !S_ISDIR(status.st_mode) || status.st_uid != geteuid())
            continue;
        const int lock = open((entry->path().string() + kFolderLock).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
        if (lock < 0) continue;
        // A file that was made in this moment may not be locked yet.
        const bool old = std::time(nullptr) - status.st_mtime > kSurelyLocked;
        std::error_code failure;
        if (old && flock(lock, LOCK_EX | LOCK_NB) == 0) fs::remove_all(entry->path(), failure);
        close(lock);
    }
}

bool isGzip(const std::string& path) {
    char head[2] = {};
    std::ifstream(path, std::ios::binary).read(head, sizeof head);
    return ByteSource::isGzip({head, sizeof head});
}

} // namespace

TemporaryFolder::TemporaryFolder() {
    std::error_code ignored;
    fs::path base = fs::temp_directory_path(ignored);
    if (base.empty()) base = "/tmp";
    removeLeftFolders(base);
    path_ = (base / kFolderName).string();
    if (!mkdtemp(path_.data()))
        throw Error(ErrorKind::Storage,
                    fmt::format("no temporary folder can be made in {}: {}", base.string(), std::strerror(errno)),
                    "set TMPDIR to a folder you may write to");
    lock_ = open((path_ + kFolderLock).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (lock_ >= 0) (void)!flock(lock_, LOCK_EX | LOCK_NB);
}

TemporaryFolder::~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    if (lock_ >= 0) close(lock_);
}

OpenTrace openTrace(const std::string& path) {
    std::error_code ignored;
    const fs::file_status status = fs::status(path, ignored);
    if (!fs::exists(status))
        throw Error(ErrorKind::Storage, fmt::format("there is no file {}", path), "check its name");
    if (!fs::is_regular_file(status))
        throw Error(ErrorKind::Storage, fmt::format("{} is not a file", path), "choose a .kvtrace file");
    if (access(path.c_str(), R_OK) != 0)
        throw Error(ErrorKind::Storage, fmt::format("{} cannot be read: permission denied", path),
                    "change its permissions");

    if (!isTraceFile(path) && findImportFormat(path))
        return openAs(importIntoCache(path), Connection::Mode::ReadOnly, path);
    if (isGzip(path))
        throw Error(ErrorKind::BadInput, fmt::format("{} is compressed", path),
                    "unpack it with gunzip and open what comes out");

    std::optional<Error> refusal;
    try {
        return openAs(path, Connection::Mode::ReadOnly);
    } catch (const Error& error) {
        if (error.kind != ErrorKind::Storage) throw;
        refusal.emplace(error);
    }
    // SQLite wants to write a -shm file beside a file in WAL mode. Where it cannot, there is no live writer either.
    const fs::path folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
    const bool room = fs::space(folder, ignored).available >= kRoomForShm;
    const bool folderIsWritable = access(folder.c_str(), W_OK) == 0;
    if (hasBeside(path, "-journal")) { // a program was killed while it wrote labels or notes
        if (!folderIsWritable || access(path.c_str(), W_OK) != 0) return openCopy(path);
        rollBack(path, path);
        return openAs(path, Connection::Mode::ReadOnly);
    }
    if (folderIsWritable && (ignored || room)) throw *refusal;
    return hasBeside(path, "-wal") ? openCopy(path) : openAs(path, Connection::Mode::Immutable);
}

} // namespace kvscope
