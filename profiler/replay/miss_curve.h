// Misses of block caches at every size, from one pass over their requests (stack distances: Mattson et al., 1970).
#pragma once

#include "base/indexed.h"
#include "profiler/replay/block_visits.h"

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kvscope {

/// Misses by number of block slots, for one cache or for several caches that have the same number of slots each.
struct MissCurve {
    int smallest = 0;                 // slots that the largest request needs: the curve begins here
    Numbered<std::int64_t> misses{0}; // [slots - smallest], never rising; the last entry holds for all larger sizes
    std::int64_t references = 0;      // hits and misses
    std::int64_t compulsory = 0;      // misses at any size: first uses of blocks that had to be loaded
    /// The part of the above that belongs to cold steps. coldMisses is as long as misses, or empty: all zero.
    Numbered<std::int64_t> coldMisses;
    std::int64_t coldReferences = 0, coldCompulsory = 0;

    /// Misses with so many slots. slots >= smallest
    std::int64_t at(int slots) const;
    /// Misses per reference, 0..1; NaN without references. slots >= smallest
    double ratio(int slots) const;
    /// The number of slots from which on only compulsory misses are left.
    int largest() const { return smallest + int(misses.size()) - 1; }
    /// The curve of the references that are in no cold step, of the same caches: these were filled by the cold steps
    /// too.
    MissCurve warm() const;
    MissCurve& operator+=(const MissCurve& other);
};

/// Lru: the block that was selected longest ago leaves; of blocks selected last in the same request, the lowest id.
/// Belady: the block whose next use is farthest away leaves. No cache of that size loads less, whether it loads ahead
/// or not, because every request must be resident as a whole.
enum class CurvePolicy { Lru, Belady };
constexpr std::string_view nameOf(CurvePolicy policy) { return policy == CurvePolicy::Lru ? "lru" : "belady"; }

/// The exact curve. Its time grows with the changes between requests, not with the requests' sizes.
/// cold: [request] 1 for the requests of cold steps; empty: there are none.
MissCurve missCurve(const BlockVisits& visits, CurvePolicy policy, std::span<const std::uint8_t> cold = {});

MissCurve sum(std::span<const MissCurve> curves);

} // namespace kvscope
