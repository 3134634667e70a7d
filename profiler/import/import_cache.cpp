// Keeps the traces made from imported files in the user's cache folder, so that a file is converted once and nothing is
// ever written beside it.
#include "base/error.h"
#include "base/whole_file.h"
#include "profiler/import/import.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace kvscope {
namespace {

namespace fs = std::filesystem;

constexpr int kConverter = 2;          // version of the conversion; raise it when an import writes other traces
constexpr std::size_t kFilesKept = 24; // most traces in the cache; the ones opened last stay
constexpr std::uintmax_t kBytesKept = std::uintmax_t(8) << 30;
constexpr std::chrono::hours kLongestImport{24};
constexpr const char* kFormerMark = ".importing-"; // part of the name that older versions gave to unfinished files

fs::path cacheFolder() {
    const auto named = [](const char* name) {
        const char* value = std::getenv(name);
        return fs::path(value ? value : "");
    };
    fs::path base = named("XDG_CACHE_HOME");
    if (!base.is_absolute()) {
        base = named("HOME");
        if (base.empty()) return fs::temp_directory_path() / fmt::format("kvscope-imports-{}", geteuid());
        base /= ".cache";
    }
    return base / "kvscope" / "imports";
}

/// File name in the cache: a hash of the conversion's version and of the file's path, time of change and size, so that
/// a changed file gets a new name.
std::string cachedName(const std::string& path) {
    std::error_code ignored;
    const fs::path file = fs::absolute(path, ignored).lexically_normal();
    const auto changed = fs::last_write_time(path, ignored).time_since_epoch().count();
    std::uint64_t hash = 0xcbf29ce484222325; // FNV-1a
    for (const char c : fmt::format("{}|{}|{}|{}", kConverter, file.string(), changed, fs::file_size(path, ignored)))
        hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    return fmt::format("{:016x}.kvtrace", hash);
}

/// Removes the traces that were opened longest ago until at most kFilesKept traces with kBytesKept bytes remain; `keep`
/// always stays. Files that another program removes at the same time cause no error.
void removeOld(const fs::path& folder, const fs::path& keep) {
    struct Old {
        fs::file_time_type used;
        fs::path path;
        std::uintmax_t bytes;
    };
    std::vector<Old> files;
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
        const std::string name = entry.path().filename().string();
        const bool leftover =
            name.find(WholeFile::kMark) != std::string::npos || name.find(kFormerMark) != std::string::npos;
        if (leftover && fs::file_time_type::clock::now() - entry.last_write_time(ignored) > kLongestImport)
            fs::remove(entry.path(), ignored); // unfinished: the program that wrote it was killed
        else if (entry.path().extension() == ".kvtrace" && entry.path() != keep)
            files.push_back({entry.last_write_time(ignored), entry.path(), entry.file_size(ignored)});
    }
    std::sort(files.begin(), files.end(), [](const Old& a, const Old& b) { return a.used > b.used; });
    std::uintmax_t bytes = fs::file_size(keep, ignored);
    for (std::size_t i = 0; i < files.size(); ++i) {
        bytes += files[i].bytes;
        if (i + 1 >= kFilesKept || bytes > kBytesKept) fs::remove(files[i].path, ignored);
    }
}

} // namespace

bool needsImport(const std::string& path) {
    std::error_code ignored;
    return findImportFormat(path) && !fs::exists(cacheFolder() / cachedName(path), ignored);
}

std::string importIntoCache(const std::string& path, const Progress& progress, const std::stop_token& stop) {
    const fs::path folder = cacheFolder(), cached = folder / cachedName(path);
    std::error_code failure;
    if (fs::exists(cached, failure)) {
        fs::last_write_time(cached, fs::file_time_type::clock::now(), failure); // marks it as just opened
        return cached.string();
    }
    const bool made = fs::create_directories(folder, failure);
    if (made) fs::permissions(folder, fs::perms::owner_all, failure); // strangers' files may hold anything
    if (!failure && std::getenv("HOME") == nullptr && std::getenv("XDG_CACHE_HOME") == nullptr) {
        struct stat status {}; // in a folder for all, anybody may have made it first
        if (lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != geteuid())
            failure = std::make_error_code(std::errc::permission_denied);
    }
    if (failure)
        throw Error(ErrorKind::Storage,
                    fmt::format("{} cannot be imported: the folder {} cannot be made: {}", path, folder.string(),
                                failure.message()),
                    "set XDG_CACHE_HOME to a folder you may write to");
    importTrace(path, cached.string(), progress, stop);
    removeOld(folder, cached);
    return cached.string();
}

} // namespace kvscope
