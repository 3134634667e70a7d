#include "core/model/mapped_watch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <sys/stat.h>
#include <unistd.h>

namespace kvscope {
namespace {

namespace fs = std::filesystem;

/// What the signal handler reads: it may neither lock nor allocate.
struct MappedRange {
    std::atomic<std::uintptr_t> begin{0}, end{0}; // 0: free
    std::array<char, 512> path{};                 // zero-terminated, cut to this length
};
/// A model has at most some hundred files. Where one has no place here, its end is an ordinary SIGBUS.
std::array<MappedRange, 1024> mappedRanges;

struct FileIdentity {
    std::string path;
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = 0;
    timespec written{};
};
std::mutex identitiesMutex;
std::map<std::uintptr_t, FileIdentity>& identities() {
    static auto* all = new std::map<std::uintptr_t, FileIdentity>; // files are unmapped as late as at the process's end
    return *all;
}

std::uintptr_t addressOf(std::span<const std::byte> bytes) { return reinterpret_cast<std::uintptr_t>(bytes.data()); }

void writeRaw(const char* text) { (void)!write(STDERR_FILENO, text, std::strlen(text)); }

extern "C" void onBusError(int signal, siginfo_t* info, void*) {
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    for (const MappedRange& range : mappedRanges) {
        if (address < range.begin.load() || address >= range.end.load()) continue;
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

void explainCutFiles() {
    struct sigaction action {};
    action.sa_sigaction = onBusError;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGBUS, &action, nullptr);
}

void watchMapped(std::span<const std::byte> bytes, const std::string& path, const struct stat& asMapped) {
    if (bytes.empty()) return;
    const std::lock_guard lock(identitiesMutex);
    identities()[addressOf(bytes)] = {path, asMapped.st_dev, asMapped.st_ino, asMapped.st_size, asMapped.st_mtim};
    for (MappedRange& range : mappedRanges) {
        if (range.begin.load() != 0) continue;
        const std::size_t length = std::min(path.size(), range.path.size() - 1);
        std::transform(path.begin(), path.begin() + std::ptrdiff_t(length), range.path.begin(),
                       [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f' ? '?' : c; });
        range.path[length] = '\0';
        range.end.store(addressOf(bytes) + bytes.size());
        range.begin.store(addressOf(bytes));
        return;
    }
}

void unwatchMapped(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    const std::lock_guard lock(identitiesMutex);
    identities().erase(addressOf(bytes));
    for (MappedRange& range : mappedRanges)
        if (range.begin.load() == addressOf(bytes)) range.end.store(0), range.begin.store(0);
}

std::string fileWrittenSince(const std::string& model) {
    std::error_code ignored;
    const fs::path given = fs::absolute(model, ignored).lexically_normal();
    const auto isPart = [&](const std::string& file) {
        const fs::path path = fs::absolute(file, ignored).lexically_normal();
        return path == given || path.parent_path() == given ||
               (!fs::is_directory(given, ignored) && path.parent_path() == given.parent_path());
    };
    const std::lock_guard lock(identitiesMutex);
    for (const auto& [address, identity] : identities()) {
        struct stat now {};
        if (!isPart(identity.path) || stat(identity.path.c_str(), &now) != 0) continue;
        if (now.st_dev != identity.device || now.st_ino != identity.inode) continue;
        if (now.st_size != identity.size || now.st_mtim.tv_sec != identity.written.tv_sec ||
            now.st_mtim.tv_nsec != identity.written.tv_nsec)
            return identity.path;
    }
    return {};
}

} // namespace kvscope
