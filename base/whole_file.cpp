#include "base/whole_file.h"

#include "base/reporting_buffer.h"
#include "base/writing_end.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvscope {

namespace fs = std::filesystem;

namespace {

constexpr std::array kWithCompanions{"", "-wal", "-shm", "-journal"}; // of SQLite
constexpr std::chrono::minutes kSurelyLeft{1}; // older versions did not lock these files, but kept writing to them

/// A name that nobody can guess: 64 random bits of the system.
std::string unforeseen() {
    std::random_device random;
    return fmt::format("{:08x}{:08x}", random(), random());
}

/// Whether the name is that of a file aside: its end is kMark and 16 hexadecimal digits, or, from older versions, kMark
/// and numbers such as 123-4.
bool isAside(std::string_view name) {
    const std::size_t mark = name.rfind(WholeFile::kMark);
    if (mark == std::string_view::npos) return false;
    const std::string_view end = name.substr(mark + std::string_view(WholeFile::kMark).size());
    return !end.empty() && end.find_first_not_of("0123456789abcdef-") == std::string_view::npos;
}

/// Removes the files aside that earlier programs left in the folder of `path`: those that nobody has locked and that
/// have not changed for kSurelyLeft. Looks at each folder once.
void removeLeftovers(const fs::path& path) {
    const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    static std::mutex mutex;
    static std::set<fs::path> clean;
    const std::lock_guard lock(mutex);
    if (!clean.insert(folder).second) return;
    std::error_code ignored;
    for (fs::directory_iterator entry(folder, ignored), end; !ignored && entry != end; entry.increment(ignored)) {
        if (!isAside(entry->path().filename().string())) continue;
        std::error_code unknown;
        const auto changed = fs::last_write_time(entry->path(), unknown);
        if (unknown || fs::file_time_type::clock::now() - changed < kSurelyLeft) continue;
        const int descriptor = open(entry->path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (descriptor < 0) continue;
        struct stat status {};
        if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && flock(descriptor, LOCK_EX | LOCK_NB) == 0)
            for (const char* suffix : kWithCompanions) fs::remove(entry->path().string() + suffix, unknown);
        close(descriptor);
    }
}

/// The file that a symbolic link leads to; any other path is returned unchanged. A file that was renamed to the path of
/// a link such as /dev/stdout would replace the link, and the file behind the link would stay as it was.
std::string behindLinks(std::string path) {
    std::error_code failure;
    if (!fs::is_symlink(path, failure)) return path;
    const fs::path target = fs::canonical(path, failure);
    return failure ? path : target.string();
}

/// Whether the path is a device, a pipe or a folder, which no other file may replace.
bool isSpecial(const std::string& path) {
    std::error_code ignored;
    const fs::file_status status = fs::status(path, ignored);
    return fs::exists(status) && !fs::is_regular_file(status);
}

} // namespace

WholeFile::WholeFile(std::string path) : path_(behindLinks(std::move(path))) {
    removeLeftovers(path_);
    constexpr int kTries = 8;
    for (int i = 0; i < kTries; ++i) {
        aside_ = path_ + kMark + unforeseen();
        lock_ = open(aside_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (lock_ >= 0) {
            (void)!flock(lock_, LOCK_EX | LOCK_NB); // some file systems cannot lock
            return;
        }
        if (errno != EEXIST) return;
    }
}

WholeFile::~WholeFile() {
    for (const char* suffix : kWithCompanions) {
        std::error_code ignored;
        fs::remove(aside_ + suffix, ignored);
    }
    if (lock_ >= 0) close(lock_);
}

std::string WholeFile::appear() {
    if (isSpecial(path_)) return "it is not a regular file";
    std::error_code failure;
    fs::rename(aside_, path_, failure);
    return failure ? failure.message() : std::string();
}

std::string databaseInTheWay(const std::string& path) {
    constexpr std::string_view kSqlite = "SQLite format 3";
    std::array<char, kSqlite.size()> head{};
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) return {};
    std::ifstream(path, std::ios::binary).read(head.data(), head.size());
    return std::string_view(head.data(), head.size()) == kSqlite ? "a database, perhaps a trace, would be lost"
                                                                 : std::string();
}

std::string whyUnwritable(const std::string& path) {
    std::error_code ignored;
    if (std::string database = databaseInTheWay(path); !database.empty()) return database;
    if (fs::is_directory(path, ignored)) return std::strerror(EISDIR);
    if (isSpecial(path)) return access(path.c_str(), W_OK) == 0 ? "" : std::strerror(errno);
    const WholeFile trial(path);
    const std::ofstream file(trial.aside(), std::ios::binary | std::ios::trunc);
    return file ? "" : std::strerror(errno);
}

std::string writeWholeFile(const std::string& path, const std::function<void(std::ostream&)>& write) {
    if (std::string database = databaseInTheWay(path); !database.empty()) return database;
    std::optional<WholeFile> whole;
    if (!isSpecial(path)) whole.emplace(path);
    const WritingEnd pipe(path);
    if (!pipe.fault().empty()) return pipe.fault();
    ReportingBuffer buffer;
    if (!buffer.open(whole ? whole->aside() : path, std::ios::out | std::ios::binary | std::ios::trunc))
        return std::strerror(errno);
    std::ostream file(&buffer);
    write(file);
    const bool closed = buffer.close() != nullptr;
    if (buffer.error() != 0 || !closed || !file) return buffer.reason();
    return whole ? whole->appear() : std::string();
}

} // namespace kvscope
