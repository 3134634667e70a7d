#include "profiler/store/writer_lock.h"

#include "base/error.h"
#include "profiler/format/trace_keys.h"
#include "profiler/sqlite/sqlite.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvscope {
namespace {

constexpr std::int64_t kLivingMs = 5000; // a writer signs at least once a second
constexpr off_t kRoom = 128 << 10;       // the pages of one small transaction, in the log and in its index
constexpr const char* kWait = "wait until it is done or choose another file";

[[noreturn]] void refuseLock(const std::string& path, const std::string& who) {
    throw Error(ErrorKind::Storage, fmt::format("{} is being written by {}", path, who), kWait);
}

/// The text that the owner of a lock wrote into it.
std::string ownerOf(int descriptor) {
    std::array<char, 32> text{};
    if (pread(descriptor, text.data(), text.size() - 1, 0) < 0) text[0] = '\0';
    const std::string id(text.data()); // behind the number lies the room that is kept
    const bool number = !id.empty() && id.find_first_not_of("0123456789") == std::string::npos;
    if (number && id == std::to_string(getpid())) return "this program already";
    return number ? fmt::format("another program (process {})", id) : "another program";
}

bool isDatabase(const std::string& path) {
    std::array<char, 16> head{};
    std::ifstream(path, std::ios::binary).read(head.data(), head.size());
    return std::string_view(head.data(), 15) == "SQLite format 3";
}

} // namespace

FileIdentity FileIdentity::of(const std::string& path) {
    struct stat status {};
    if (stat(path.c_str(), &status) != 0) return {};
    return {status.st_dev, status.st_ino};
}

OpenFile OpenFile::find(const FileIdentity& identity) {
    namespace fs = std::filesystem;
    std::error_code failure;
    for (const fs::directory_entry& entry : fs::directory_iterator("/proc/self/fd", failure)) {
        struct stat status {};
        if (stat(entry.path().c_str(), &status) != 0 || !(FileIdentity{status.st_dev, status.st_ino} == identity))
            continue;
        OpenFile found{status.st_nlink > 0, {}};
        const fs::path path = fs::read_symlink(entry.path(), failure);
        if (!failure && FileIdentity::of(path.string()) == identity) found.path = path.string();
        return found;
    }
    return {};
}

WriterLock::WriterLock(const std::string& path) : name_(path + "-lock") {
    for (;;) {
        const int descriptor = open(name_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (descriptor < 0) return;
        if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
            const bool held = errno == EWOULDBLOCK;
            const std::string owner = held ? ownerOf(descriptor) : "";
            close(descriptor);
            if (held) refuseLock(path, owner);
            return;
        }
        // The last owner may have removed the file between the two calls: then the lock is on a file that no other
        // program finds.
        struct stat mine {
        }, named{};
        const bool found = fstat(descriptor, &mine) == 0 && stat(name_.c_str(), &named) == 0 &&
                           mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
        if (!found) {
            close(descriptor);
            continue;
        }
        tookOver_ = mine.st_size > 0;
        const std::string id = std::to_string(getpid());
        if (ftruncate(descriptor, 0) != 0 || pwrite(descriptor, id.data(), id.size(), 0) < 0) {
            // The lock holds without its owner's number.
        }
        posix_fallocate(descriptor, off_t(id.size()), kRoom); // a disk without that much has no room to keep
        descriptor_ = descriptor;
        return;
    }
}

void WriterLock::giveRoom() const {
    if (descriptor_ >= 0 && ftruncate(descriptor_, off_t(std::to_string(getpid()).size())) != 0) {
        // The file system refuses: the disk then has no more room than before.
    }
}

WriterLock::~WriterLock() {
    if (descriptor_ < 0) return;
    unlink(name_.c_str()); // while it is locked
    close(descriptor_);
}

void refuseWhileWritten(const std::string& path, Heartbeat heartbeat) {
    if (!isDatabase(path)) return;
    try {
        Connection connection(path, Connection::Mode::ReadWrite);
        sqlite3_busy_timeout(connection.handle(), 300);
        const int code = sqlite3_exec(connection.handle(), "BEGIN IMMEDIATE; ROLLBACK", nullptr, nullptr, nullptr);
        if ((code & 0xff) == SQLITE_BUSY || (code & 0xff) == SQLITE_LOCKED) refuseLock(path, "another program");
        if (heartbeat == Heartbeat::IsOver || connection.integer("PRAGMA application_id") != trace::kApplicationId)
            return;
        const auto now =
            std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
                .count();
        Statement living(connection, "SELECT r.run_id, h.program FROM run r JOIN health h ON h.run_id = r.run_id"
                                     " WHERE r.status = 'running' AND h.heartbeat_ms BETWEEN ?1 - ?2 AND ?1 + ?2");
        living.bindAll(std::int64_t(now), kLivingMs);
        if (living.step())
            refuseLock(path,
                       fmt::format("{} (run {} is recorded into it)", living.text(1).substr(0, 80), living.int64(0)));
    } catch (const Error& error) {
        if (error.hint == kWait) throw;
        // Damaged, or not ours to open: what replaces it needs only the folder.
    }
}

} // namespace kvscope
