#include "sdk/trace/handles.h"

#include "base/error.h"
#include "profiler/store/writer_lock.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <dirent.h>
#include <mutex>
#include <new>
#include <pthread.h>
#include <shared_mutex>
#include <sys/stat.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

namespace kvscope::sdk {
namespace {

constexpr unsigned kKindShift = 60, kProcessShift = 36; // a process number has at most 22 bits
constexpr std::uint64_t kProcessMask = (std::uint64_t(1) << 24) - 1;

struct Registry {
    std::shared_mutex mutex;
    std::unordered_map<std::uint64_t, std::shared_ptr<Object>> objects;
    std::vector<FileIdentity> inherited; // files that the parent process was writing at the fork
    std::uint64_t last = 0;              // the serial number that the last handle got
};

// The registry is never destroyed, because a thread of the program may still record while the program ends.
std::atomic<Registry*> registry{nullptr};
std::atomic<std::uint64_t> process{0};
thread_local std::array<char, 1024> lastError{};

/// Keeps every writer out of SQLite until the fork is over. Otherwise the child could find SQLite's locks taken, and
/// nobody would free them.
void beforeFork() {
    Registry& now = *registry.load();
    now.mutex.lock();
    for (const auto& [handle, object] : now.objects) object->settle();
}
/// Closes the child's descriptor of a file's lock. The lock lasts as long as any process has the descriptor, and a
/// child may outlive its parent.
void closeInherited(const std::string& lock) {
    const FileIdentity file = FileIdentity::of(lock);
    DIR* open = file == FileIdentity{} ? nullptr : opendir("/proc/self/fd");
    if (open == nullptr) return;
    std::vector<int> found;
    while (const dirent* entry = readdir(open)) {
        const int descriptor = std::atoi(entry->d_name);
        struct stat status {};
        if (descriptor > 2 && fstat(descriptor, &status) == 0 && FileIdentity{status.st_dev, status.st_ino} == file)
            found.push_back(descriptor);
    }
    closedir(open);
    for (const int descriptor : found) close(descriptor);
}

void afterForkInParent() {
    Registry& now = *registry.load();
    for (const auto& [handle, object] : now.objects) object->resume();
    now.mutex.unlock();
}
void afterForkInChild() {
    // is not destroyed: the threads of its objects do not exist in this process
    const Registry& before = *registry.load();
    auto* mine = new (std::nothrow) Registry;
    if (mine != nullptr) {
        mine->inherited = before.inherited;
        for (const auto& [handle, object] : before.objects)
            if (const std::string& file = object->writes(); !file.empty()) {
                mine->inherited.push_back(FileIdentity::of(file));
                closeInherited(file + "-lock");
            }
        registry = mine;
    }
    process = std::uint64_t(getpid()) & kProcessMask;
}

Registry& here() {
    static std::once_flag once;
    std::call_once(once, [] {
        registry = new Registry;
        process = std::uint64_t(getpid()) & kProcessMask;
        pthread_atfork(beforeFork, afterForkInParent, afterForkInChild);
    });
    return *registry.load();
}

const char* nameOf(Kind kind) {
    constexpr std::array<const char*, 5> names{"nothing", "writer", "run", "step", "table"};
    return names[std::size_t(kind)];
}

/// Called before any lock is taken: in a forked child a lock may be held for ever.
void requireOwn(Kind kind, std::uint64_t handle) {
    const auto given = unsigned(handle >> kKindShift);
    if (given != unsigned(kind))
        refuse(KVTRACE_CLOSED, "this is not a ", nameOf(kind), ", but ",
               given > 0 && given <= 4 ? std::string("a ") + nameOf(Kind(given)) : "no handle at all",
               "; pass the handle that the library gave for it");
    here();
    if ((handle >> kProcessShift & kProcessMask) != process.load())
        refuse(KVTRACE_FORKED, "this ", nameOf(kind),
               " belongs to the process that forked this one, which goes on recording; open a file of its own here");
}

[[noreturn]] void refuseClosed(Kind kind) {
    refuse(KVTRACE_CLOSED, "this ", nameOf(kind), " is closed; begin a new one");
}

} // namespace

const std::string& Object::writes() const {
    static const std::string none;
    return none;
}

std::uint64_t give(Kind kind, std::shared_ptr<Object> object) {
    Registry& all = here();
    const std::unique_lock lock(all.mutex);
    const std::uint64_t handle = std::uint64_t(kind) << kKindShift | process.load() << kProcessShift | ++all.last;
    all.objects.emplace(handle, std::move(object));
    return handle;
}

std::shared_ptr<Object> find(Kind kind, std::uint64_t handle) {
    requireOwn(kind, handle);
    Registry& all = here();
    const std::shared_lock lock(all.mutex);
    const auto found = all.objects.find(handle);
    if (found == all.objects.end()) refuseClosed(kind);
    return found->second;
}

std::shared_ptr<Object> release(Kind kind, std::uint64_t handle) {
    requireOwn(kind, handle);
    Registry& all = here();
    const std::unique_lock lock(all.mutex);
    const auto found = all.objects.find(handle);
    if (found == all.objects.end()) refuseClosed(kind);
    std::shared_ptr<Object> object = std::move(found->second);
    all.objects.erase(found);
    return object;
}

void drop(std::uint64_t handle) noexcept {
    std::shared_ptr<Object> object; // declared first, so that the object is destroyed after the lock is free
    Registry& all = here();
    const std::unique_lock lock(all.mutex);
    if (const auto found = all.objects.find(handle); found != all.objects.end()) {
        object = std::move(found->second);
        all.objects.erase(found);
    }
}

void refuseInherited(const std::string& path) {
    Registry& all = here();
    const std::shared_lock lock(all.mutex);
    const FileIdentity file = FileIdentity::of(path);
    if (file == FileIdentity{}) return;
    for (const FileIdentity& other : all.inherited)
        if (other == file)
            refuse(KVTRACE_FORKED, path,
                   " is recorded by the process that forked this one; record to another file, e.g. "
                   "with %p in its name");
}

void remember(const char* sentence) noexcept { std::snprintf(lastError.data(), lastError.size(), "%s", sentence); }

int32_t failed() noexcept {
    try {
        throw;
    } catch (const Refusal& refusal) {
        remember(refusal.what());
        return refusal.status;
    } catch (const Error& error) {
        remember(oneLine(error).c_str());
        switch (error.kind) {
        case ErrorKind::Storage:
            return KVTRACE_STORAGE;
        case ErrorKind::OutOfMemory:
            return KVTRACE_MEMORY;
        case ErrorKind::Unsupported:
            return KVTRACE_UNSUPPORTED;
        default:
            return KVTRACE_INVALID;
        }
    } catch (const std::bad_alloc&) {
        remember("there is no memory left for this call; record fewer sequences or a smaller queue");
        return KVTRACE_MEMORY;
    } catch (const std::exception& trouble) {
        remember(trouble.what());
        return KVTRACE_INVALID;
    } catch (...) {
        remember("an error of unknown kind; please report how it came about");
        return KVTRACE_INVALID;
    }
}

} // namespace kvscope::sdk

const char* kvtrace_last_error(void) { return kvscope::sdk::lastError.data(); }
