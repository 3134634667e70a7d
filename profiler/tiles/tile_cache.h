// Tiles that were built once, kept in the user's cache folder: one file per tile, each with the stamp of the trace it
// was made from. A trace that changed has another stamp, so its old tiles are never shown; a damaged file reads as
// none. Nothing here fails: without a usable folder there is simply no cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

/// What tells one state of a trace from another: number, size and times of the file and of the log beside it. The time
/// of change cannot be set by hand, so a copy put in its place differs too. Empty: the file is not there, or it was
/// changed a moment ago and might change again within the grain of its times.
std::string traceStamp(const std::string& path);

class TileCache {
public:
    struct Place {
        std::string folder;      // empty: no cache
        std::uint64_t limit = 0; // bytes of all tiles together; those used longest ago go first
    };
    /// $KVSCOPE_CACHE_DIR, else kvscope in $XDG_CACHE_HOME, else ~/.cache/kvscope; $KVSCOPE_CACHE_MIB (2048; 0: none).
    static Place userPlace();

    /// `what`: which tiles of the trace, e.g. "run 1 heat locality layers".
    TileCache(Place place, std::string stamp, std::string what);
    std::optional<std::vector<std::byte>> load(int tile) const;
    /// Written aside and renamed, so that a reader sees the whole tile or none.
    void store(int tile, std::span<const std::byte> bytes) const;
    /// Where the tiles are; empty: nowhere.
    const std::string& folder() const { return folder_; }

private:
    bool makeRoom(std::uint64_t bytes) const;
    std::string file(int tile) const;
    Place place_;
    std::string key_;    // stands in every file
    std::string folder_; // named by a hash of the key
};

} // namespace kvscope
