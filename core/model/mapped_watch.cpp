#include "core/model/mapped_watch.h"

#include "base/error.h"
#include "core/model/model.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <mutex>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvscope {
namespace {

namespace fs = std::filesystem;

/// What the signal handler reads: it may neither lock nor allocate.
struct MappedRange {
    std::atomic<std::uintptr_t> begin{0}, end{0}; // 0: free
    std::array<char, 512> path{};                 // zero-terminated, cut to this length
    std::atomic<bool> zeros{false};               // some of it was cut off, and zeros are there now
};
/// A model has at most some hundred files. Where one has no place here, its end is an ordinary SIGBUS.
std::array<MappedRange, 1024> mappedRanges;

std::atomic<int> zeroReaders{0}; // how many CutFilesReadAsZeros there are
std::atomic<bool> zerosWereRead{false};
std::uintptr_t pageBytes = 4096; // set before the handler is

struct FileIdentity {
    std::string path;
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = 0;
    timespec written{};
    int watch = -1;                          // of inotify; below 0: the file has none
    bool modified = false, timesSet = false; // what inotify has told of the file since it was mapped
};
std::mutex identitiesMutex; // guards what follows
std::map<std::uintptr_t, FileIdentity>& identities() {
    static auto* all =
        new std::map<std::uintptr_t, FileIdentity>; // never destroyed: files may be unmapped when the process ends
    return *all;
}

/// A descriptor of inotify, which tells writes to a file from mere changes of its times; the time that a file system
/// keeps does not. Below 0: the system gives this process none.
int notifier() {
    static const int descriptor = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    return descriptor;
}

/// Reads the events that inotify has ready and notes them at the mapped files that they are about.
void takeNotices() {
    if (notifier() < 0) return;
    alignas(inotify_event) std::array<char, 4096> buffer{};
    ssize_t length = 0;
    while ((length = read(notifier(), buffer.data(), buffer.size())) > 0) {
        for (ssize_t at = 0; at < length;) {
            inotify_event event{};
            std::memcpy(&event, buffer.data() + at, sizeof event);
            at += ssize_t(sizeof event + event.len);
            for (auto& [address, identity] : identities()) {
                if ((event.mask & IN_Q_OVERFLOW) == 0 && event.wd != identity.watch) continue;
                identity.modified |= (event.mask & IN_MODIFY) != 0;
                identity.timesSet |= (event.mask & IN_ATTRIB) != 0;
                if ((event.mask & (IN_Q_OVERFLOW | IN_IGNORED)) != 0)
                    identity.watch = -1; // inotify lost events, or has stopped to watch the file
            }
        }
    }
}

/// Whether the file was written since it was mapped, by inotify's events and by what `now` says of the file. A changed
/// time counts as a write unless inotify told that somebody set the times: inotify may watch the file no longer, and
/// does not notice bytes that are written through memory or on another machine. Linux reports a program that sets the
/// time of writing without the time of reading (`touch -m`) as one that wrote, so that counts as a write.
bool isWritten(const FileIdentity& identity, const struct stat& now) {
    if (identity.modified || now.st_size != identity.size) return true;
    const bool sameTime =
        now.st_mtim.tv_sec == identity.written.tv_sec && now.st_mtim.tv_nsec == identity.written.tv_nsec;
    return !sameTime && !(identity.watch >= 0 && identity.timesSet);
}

std::uintptr_t addressOf(std::span<const std::byte> bytes) { return reinterpret_cast<std::uintptr_t>(bytes.data()); }

/// Whether zeros are mapped where the file that was mapped at `address` has lost bytes.
bool hasZeros(std::uintptr_t address) {
    return zerosWereRead.load() && std::any_of(mappedRanges.begin(), mappedRanges.end(), [&](const MappedRange& range) {
               return range.begin.load() == address && range.zeros.load();
           });
}

/// Whether the file that is mapped under this name has become shorter, be it for a moment.
bool isCut(const std::string& file) {
    const std::lock_guard lock(identitiesMutex);
    return std::any_of(identities().begin(), identities().end(), [&](const auto& mapped) {
        const FileIdentity& identity = mapped.second;
        struct stat now {};
        const bool shorter = stat(file.c_str(), &now) == 0 && now.st_dev == identity.device &&
                             now.st_ino == identity.inode && now.st_size < identity.size;
        return identity.path == file && (shorter || hasZeros(mapped.first));
    });
}

void writeRaw(const char* text) { (void)!write(STDERR_FILENO, text, std::strlen(text)); }

/// Puts zeros in place of the page of `address` and of all behind it up to `end`: a file that lost one page has lost
/// those behind it. False: the system has no memory for them.
bool putZeros(std::uintptr_t address, std::uintptr_t end) {
    const std::uintptr_t from = address / pageBytes * pageBytes;
    return mmap(reinterpret_cast<void*>(from), end - from, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
           MAP_FAILED;
}

extern "C" void onBusError(int signal, siginfo_t* info, void*) {
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    for (MappedRange& range : mappedRanges) {
        const std::uintptr_t end = range.end.load();
        if (address < range.begin.load() || address >= end) continue;
        const int reason = errno;
        if (zeroReaders.load() > 0 && putZeros(address, end)) {
            range.zeros.store(true);
            zerosWereRead.store(true);
            errno = reason;
            return; // the access is tried again
        }
        writeRaw(program_invocation_short_name);
        writeRaw(": ");
        writeRaw(range.path.data());
        writeRaw(
            " was cut short by another program while it was read; write the file again, and leave it alone while a "
            "session uses it\n");
        _exit(1);
    }
    struct sigaction usual {};
    usual.sa_handler = SIG_DFL;
    sigaction(signal, &usual, nullptr); // the access is tried again when this returns
}

} // namespace

CutFilesReadAsZeros::CutFilesReadAsZeros() noexcept { ++zeroReaders; }
CutFilesReadAsZeros::~CutFilesReadAsZeros() { --zeroReaders; }

void explainCutFiles() {
    pageBytes = std::uintptr_t(sysconf(_SC_PAGESIZE));
    struct sigaction action {};
    action.sa_sigaction = onBusError;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, nullptr);
}

void watchMapped(std::span<const std::byte> bytes, const std::string& path, const struct stat& asMapped) {
    if (bytes.empty()) return;
    const std::lock_guard lock(identitiesMutex);
    takeNotices(); // the file may be mapped already, and what was told before is not of this mapping
    FileIdentity identity{path, asMapped.st_dev, asMapped.st_ino, asMapped.st_size, asMapped.st_mtim};
    if (notifier() >= 0) identity.watch = inotify_add_watch(notifier(), path.c_str(), IN_MODIFY | IN_ATTRIB);
    identities()[addressOf(bytes)] = std::move(identity);
    for (MappedRange& range : mappedRanges) {
        if (range.begin.load() != 0) continue;
        const std::size_t length = std::min(path.size(), range.path.size() - 1);
        std::transform(path.begin(), path.begin() + std::ptrdiff_t(length), range.path.begin(),
                       [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f' ? '?' : c; });
        range.path[length] = '\0';
        range.end.store(addressOf(bytes) + bytes.size());
        range.zeros.store(false);
        range.begin.store(addressOf(bytes));
        return;
    }
}

void unwatchMapped(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    const std::lock_guard lock(identitiesMutex);
    if (const auto found = identities().find(addressOf(bytes)); found != identities().end()) {
        const int watch = found->second.watch;
        identities().erase(found);
        const bool shared = std::any_of(identities().begin(), identities().end(),
                                        [&](const auto& other) { return other.second.watch == watch; });
        if (watch >= 0 && !shared) inotify_rm_watch(notifier(), watch);
    }
    for (MappedRange& range : mappedRanges)
        if (range.begin.load() == addressOf(bytes)) range.end.store(0), range.begin.store(0);
}

std::string fileWrittenSince(const Model& model) {
    std::string file = fileWrittenSince(model.path());
    // What was calibrated may lie in a folder of its own.
    if (file.empty() && !model.folder().empty()) file = fileWrittenSince(model.folder());
    return file;
}

std::string fileWrittenSince(const std::string& place) {
    std::error_code ignored;
    const fs::path given = fs::absolute(place, ignored).lexically_normal();
    const auto isPart = [&](const std::string& file) {
        const fs::path path = fs::absolute(file, ignored).lexically_normal();
        return path == given || path.parent_path() == given ||
               (!fs::is_directory(given, ignored) && path.parent_path() == given.parent_path());
    };
    const std::lock_guard lock(identitiesMutex);
    takeNotices();
    for (const auto& [address, identity] : identities()) {
        if (!isPart(identity.path)) continue;
        if (hasZeros(address)) return identity.path;
        struct stat now {};
        const bool there =
            stat(identity.path.c_str(), &now) == 0 && now.st_dev == identity.device && now.st_ino == identity.inode;
        if (there ? isWritten(identity, now) : identity.modified) return identity.path;
    }
    return {};
}

void refuseWrittenWeights(const Model& model) {
    const std::string file = fileWrittenSince(model);
    if (file.empty()) return;
    if (isCut(file))
        throw Error(ErrorKind::Storage, fmt::format("{} was cut short by another program while it was read", file),
                    "write the file again, and leave it alone while a session uses it");
    throw Error(ErrorKind::Storage,
                fmt::format("another program wrote to {} while it was read, so that what was computed may be of other "
                            "weights",
                            file),
                "run again, and leave the model's files alone meanwhile");
}

void refuseCutWeights(const Model& model) {
    if (zerosWereRead.load()) refuseWrittenWeights(model);
}

} // namespace kvscope
