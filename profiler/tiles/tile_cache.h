// Keeps tiles in the user's cache folder, one file for each tile. A file has the stamp of the trace from which the tile
// was made. A trace that has changed has another stamp, so that its old tiles are never shown. A damaged file counts as
// missing. Nothing here fails: without a usable folder no tile is kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

/// Tells one state of a trace from another by the inode number, size and times of the file and of the log beside it.
/// The time of change cannot be set by hand, so that another file put in the same place has another stamp. Empty: the
/// file does not exist, or it was changed so recently that another change might leave the same times.
std::string traceStamp(const std::string& path);

class TileCache {
public:
    struct Place {
        std::string folder;      // empty: no cache
        std::uint64_t limit = 0; // most bytes of all tiles; beyond it the tiles used longest ago are removed
    };
    /// $KVSCOPE_CACHE_DIR, else kvscope in $XDG_CACHE_HOME, else ~/.cache/kvscope; $KVSCOPE_CACHE_MIB (2048; 0: none).
    static Place userPlace();

    /// `what`: which tiles of the trace, e.g. "run 1 heat locality layers".
    TileCache(Place place, std::string stamp, std::string what);
    std::optional<std::vector<std::byte>> load(int tile) const;
    /// Writes another file and renames it, so that a reader sees the whole tile or none.
    void store(int tile, std::span<const std::byte> bytes) const;
    /// The folder of the tiles; empty: there is no cache.
    const std::string& folder() const { return folder_; }

private:
    bool makeRoom(std::uint64_t bytes) const;
    std::string file(int tile) const;
    Place place_;
    std::string key_;    // stamp and `what`; stands at the beginning of every file
    std::string folder_; // named by a hash of the key
};

} // namespace kvscope
