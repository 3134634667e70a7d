// Sizes that methods' declarations of their memory share (MethodEntry::memory).
#pragma once

#include "core/plan/kv_format.h"
#include "core/select/method.h"

#include <algorithm>
#include <vector>

namespace kvscope::select {

/// Sizes of one sequence in one layer in which the method chooses.
struct Sizes {
    Sizes(const MethodUse& use, ContextLength length)
        : format(kvFormat(use.backend, use.config, use.spec)), gpu(use.backend == Backend::Cuda),
          biased(use.spec.bias.scale != 0.f), number(bytesOf(format.type)), tokens(length.tokens()),
          blocks(use.spec.grid.blocks(length.tokens())), dim(use.config.headDim) {}

    KvFormat format;
    bool gpu, biased;    // biased: the attention adds eviction scores
    std::int64_t number; // bytes of a channel that a method stores: bf16 on a GPU, float32 on the CPU
    std::int64_t tokens, blocks, dim;

    std::int64_t atMost(std::int64_t wanted) const { return std::clamp<std::int64_t>(wanted, 1, tokens); }
    std::int64_t blocksOf(std::int64_t some) const { return (some + format.blockTokens - 1) / format.blockTokens; }
    /// Keys and values of so many tokens of one KV head, in whole blocks.
    std::int64_t kvBytes(std::int64_t some) const { return blocksOf(some) * format.blockTokens * 2 * dim * number; }
};

/// Memory in which a method remembers something of each KV head, or query head, for its choice.
inline MemoryNeed indexOf(const char* key, const char* what, Per per, std::int64_t bytes) {
    return {key, what, MemoryTier::Device, Holds::Index, Lifetime::Session, per, bytes, LayerSet::Sparse};
}
/// Keys and values of each KV head that a method with its own device tier keeps.
inline MemoryNeed kvOf(const char* key, const char* what, MemoryTier tier, std::int64_t bytes) {
    return {key, what, tier, Holds::Kv, Lifetime::Session, Per::KvHead, bytes, LayerSet::Sparse};
}

/// Memory of a method's own store of keys and values: on the host, or on the device where nothing is offloaded.
inline MemoryNeed storeOf(const char* key, const MethodUse& use, std::int64_t bytes) {
    return kvOf(key, "the KV store", use.offload ? MemoryTier::Host : MemoryTier::Device, bytes);
}
/// On a GPU many arrays give every sequence as much room as the longest one needs; on the CPU each has its own size.
inline MemoryNeed asLongest(const Sizes& s, MemoryNeed need) {
    need.asLongest = s.gpu;
    return need;
}

/// Memory that a method needs in no layer in particular, on the host: of each sequence's KV or query heads, or of the
/// session (Per::One).
inline MemoryNeed scratchOf(const char* key, const char* what, Lifetime life, Per per, std::int64_t bytes) {
    return {key, what, MemoryTier::Host, Holds::Scratch, life, per, bytes, LayerSet::None};
}

/// Memory in which a step on the CPU keeps `count` single tokens that a KV head attends to: the choice, and their keys
/// and values, which the engine packs into blocks. scored: tokens that are scored for the choice.
inline MemoryNeed chosenTokens(const Sizes& s, std::int64_t count, std::int64_t scored) {
    constexpr std::int64_t kListed = 3 * 4 + 12 + 1; // position, unit, score, the record of it, whether it was a hit
    return scratchOf("chosen_tokens", "a step's tokens", Lifetime::Step, Per::KvHead,
                     s.blocksOf(count) * s.format.blockBytes() + count * kListed + scored * 4);
}

/// Memory of a method that keeps `count` tokens of each KV head and forgets the others: what it knows of each
/// (listBytes), and on a GPU their keys and values. On the CPU the method reads keys and values where every block is
/// stored.
inline std::vector<MemoryNeed> retainedTokens(const Sizes& s, std::int64_t count, std::int64_t listBytes) {
    // of a KV head on a GPU: the number of tokens, a free place, whether a step attended
    constexpr std::int64_t kHead = 4 + 4 + 1;
    std::int64_t bytes = count * listBytes;
    if (s.gpu) bytes += kHead + (s.biased ? s.blocksOf(count) * s.format.blockTokens * 4 : 0);
    std::vector<MemoryNeed> needs{
        asLongest(s, indexOf("retained_tokens", "lists of retained tokens", Per::KvHead, bytes))};
    if (s.gpu)
        needs.push_back(asLongest(s, kvOf("retained_kv", "retained tokens", MemoryTier::Device, s.kvBytes(count))));
    else
        needs.push_back(chosenTokens(s, count, count));
    return needs;
}

/// Two vectors for each page of every KV head, and the keys of the page that is not full.
inline MemoryNeed digestsOf(const Sizes& s) {
    return indexOf("digests", "page digests", Per::KvHead, (2 * s.blocks + s.format.blockTokens) * s.dim * s.number);
}

/// Labels of `channels` channels of every key: codes with step and minimum (4 bits), or the numbers themselves. On a
/// GPU the list of the channels is there too.
inline MemoryNeed labelsOf(const Sizes& s, std::int64_t channels, bool codes) {
    const std::int64_t packed = codes ? (s.gpu ? (channels + 7) / 8 * 4 : (channels + 1) / 2) + 8
                                      : (s.gpu ? (channels + 1) / 2 * 4 : channels * 4);
    const std::int64_t bytes = s.gpu ? (s.tokens + 31) / 32 * 32 * packed + channels * 4 : s.tokens * packed;
    return asLongest(s, indexOf("labels", "label cache", Per::KvHead, bytes));
}

} // namespace kvscope::select
