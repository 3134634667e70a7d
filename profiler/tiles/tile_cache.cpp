#include "profiler/tiles/tile_cache.h"

#include "base/whole_file.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <sys/stat.h>
#include <unistd.h>

namespace kvscope {
namespace {

namespace fs = std::filesystem;

constexpr std::array<char, 8> kMagic{'K', 'V', 'S', 'T', 'I', 'L', 'E', '1'};
constexpr const char* kSuffix = ".tile";
constexpr std::uint64_t kDefaultMib = 2048;
constexpr double kSettled = 0.1; // seconds; two changes within a clock tick may leave the same file time

/// A checksum against damage, made of eight bytes at a time. It does not protect from malice.
std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed) {
    constexpr std::uint64_t factor = 0x9E3779B97F4A7C15u;
    std::uint64_t hash = seed ^ (bytes.size() * factor);
    const auto mix = [&](std::uint64_t word) {
        hash = (hash ^ word) * factor;
        hash ^= hash >> 29;
    };
    std::size_t at = 0;
    for (; at + 8 <= bytes.size(); at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes.data() + at, 8);
        mix(word);
    }
    std::uint64_t rest = 0;
    if (at < bytes.size()) std::memcpy(&rest, bytes.data() + at, bytes.size() - at);
    mix(rest);
    return hash;
}

std::span<const std::byte> bytesOf(const std::string& text) { return std::as_bytes(std::span(text)); }

struct Header {
    std::array<char, 8> magic = kMagic;
    std::uint64_t key = 0, bytes = 0, sum = 0; // length of the key that follows; of the payload; the payload's checksum
};

} // namespace

std::string traceStamp(const std::string& path) {
    // Asks for the trace's file times without opening it: closing the file would drop the locks that other connections
    // of this process hold.
    std::string text = path;
    for (const char* suffix : {"", "-wal"}) {
        struct stat status {};
        if (stat((path + suffix).c_str(), &status) != 0) {
            if (*suffix == '\0') return {};
            continue;
        }
        text += fmt::format("; file {}:{}, {} bytes, written {}.{:09}, changed {}.{:09}", status.st_dev, status.st_ino,
                            status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec, status.st_ctim.tv_sec,
                            status.st_ctim.tv_nsec);
        timespec now{};
        clock_gettime(CLOCK_REALTIME, &now);
        const double age =
            double(now.tv_sec - status.st_ctim.tv_sec) + double(now.tv_nsec - status.st_ctim.tv_nsec) / 1e9;
        if (age < kSettled) return {};
    }
    return text;
}

TileCache::Place TileCache::userPlace() {
    const auto variable = [](const char* name) { // NOLINT: read before any thread could write the environment
        const char* value = std::getenv(name);
        return std::string(value ? value : "");
    };
    Place place;
    place.limit = kDefaultMib << 20;
    if (const std::string mib = variable("KVSCOPE_CACHE_MIB"); !mib.empty())
        place.limit = std::strtoull(mib.c_str(), nullptr, 10) << 20;
    place.folder = variable("KVSCOPE_CACHE_DIR");
    if (place.folder.empty())
        if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) place.folder = cache + "/kvscope";
    if (place.folder.empty())
        if (const std::string home = variable("HOME"); !home.empty()) place.folder = home + "/.cache/kvscope";
    if (place.limit == 0) place.folder.clear();
    return place;
}

TileCache::TileCache(Place place, std::string stamp, std::string what) : place_(std::move(place)) {
    if (place_.folder.empty() || stamp.empty()) return;
    key_ = std::move(stamp) + "\n" + std::move(what);
    folder_ =
        fmt::format("{}/tiles/{:016x}{:016x}", place_.folder, checksum(bytesOf(key_), 2), checksum(bytesOf(key_), 3));
}

std::string TileCache::file(int tile) const { return fmt::format("{}/{}{}", folder_, tile, kSuffix); }

std::optional<std::vector<std::byte>> TileCache::load(int tile) const {
    if (folder_.empty()) return std::nullopt;
    std::ifstream in(file(tile), std::ios::binary);
    Header header;
    if (!in.read(reinterpret_cast<char*>(&header), sizeof header)) return std::nullopt;
    if (header.magic != kMagic || header.key != key_.size()) return std::nullopt;
    std::string key(key_.size(), '\0');
    if (!in.read(key.data(), std::streamsize(key.size())) || key != key_) return std::nullopt;
    std::error_code failure;
    const auto whole = fs::file_size(file(tile), failure); // a damaged length beyond this is refused
    if (failure || whole != sizeof header + key.size() + header.bytes) return std::nullopt;
    std::vector<std::byte> bytes(std::size_t(header.bytes));
    if (!in.read(reinterpret_cast<char*>(bytes.data()), std::streamsize(bytes.size()))) return std::nullopt;
    if (checksum(bytes, 4) != header.sum) return std::nullopt;
    fs::last_write_time(folder_, fs::file_time_type::clock::now(), failure); // notes that the folder is in use
    return bytes;
}

void TileCache::store(int tile, std::span<const std::byte> bytes) const {
    if (folder_.empty() || bytes.size() > place_.limit) return;
    std::error_code failure;
    fs::create_directories(folder_, failure);
    if (failure) return;
    if (!makeRoom(bytes.size())) return;
    Header header;
    header.key = key_.size();
    header.bytes = bytes.size();
    header.sum = checksum(bytes, 4);
    // If writing fails, for example on a full disk, the tile is not in the cache.
    writeWholeFile(file(tile), [&](std::ostream& out) {
        out.write(reinterpret_cast<const char*>(&header), sizeof header);
        out.write(key_.data(), std::streamsize(key_.size()));
        out.write(reinterpret_cast<const char*>(bytes.data()), std::streamsize(bytes.size()));
    });
}

bool TileCache::makeRoom(std::uint64_t bytes) const {
    struct Set {
        fs::path folder;
        fs::file_time_type used;
        std::uint64_t bytes = 0;
    };
    std::error_code failure;
    std::vector<Set> sets;
    std::uint64_t all = bytes;
    for (fs::directory_iterator at(place_.folder + "/tiles", failure), end; !failure && at != end;
         at.increment(failure)) {
        Set set{at->path(), at->last_write_time(failure), 0};
        std::error_code inner;
        for (fs::directory_iterator file(set.folder, inner), last; !inner && file != last; file.increment(inner)) {
            std::error_code gone;
            const auto size = file->file_size(gone);
            if (!gone) set.bytes += size;
        }
        all += set.bytes;
        sets.push_back(std::move(set));
    }
    std::sort(sets.begin(), sets.end(), [](const Set& a, const Set& b) { return a.used < b.used; });
    for (const Set& set : sets) {
        if (all <= place_.limit) break;
        if (set.folder == fs::path(folder_)) continue; // the folder that is being filled stays
        fs::remove_all(set.folder, failure);
        all -= std::min(all, set.bytes);
    }
    return all <= place_.limit;
}

} // namespace kvscope
