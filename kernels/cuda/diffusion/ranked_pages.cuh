// Parts of the kernels that rank pages of a prefix in one thread block: how many it can rank, and what was taken as a
// list.
#pragma once

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/ranking.cuh"

#include <string>

namespace kvscope::cuda {

/// @throws Error(Unsupported): a thread block's shared memory, of which ranking takes `bytes`, is too small for so many
/// @param what are ranked, "pages"; key: the parameter that makes them larger, "page"
inline void checkRanked(const Launch& how, int count, std::size_t bytes, const std::string& what,
                        const std::string& key) {
    constexpr std::size_t kFixed = 2048; // of the kernels' own
    constexpr int kMostRanked = 65535;   // see takeLargest
    if (count > kMostRanked || bytes + kFixed > how.blockShared)
        throw Error(ErrorKind::Unsupported,
                    "a choice among " + std::to_string(count) + " " + what + " needs " +
                        std::to_string((bytes + kFixed) >> 10) + " KiB of a multiprocessor's shared memory",
                    "use larger " + what + " (--set " + key + "=32), or a shorter context");
}

/// Writes the places of the bits of `words` words to `list`, ascending. wordAt(w) is called once for each word. All
/// threads of the thread block call this. @return how many there are
template <int kWarps, class WordAt>
__device__ inline int listBits(int words, std::int32_t* list, BlockCounter<kWarps>& counter, WordAt&& wordAt) {
    int before = 0;
    for (int first = 0; first < words; first += kWarps * kWarp) {
        const int w = first + int(threadIdx.x);
        std::uint32_t word = w < words ? wordAt(w) : 0;
        int total = 0;
        int at = before + counter.prefix(__popc(word), total);
        for (; word != 0; word &= word - 1) list[at++] = w * 32 + __ffs(int(word)) - 1;
        before += total;
    }
    return before;
}

} // namespace kvscope::cuda
