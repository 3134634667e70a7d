// One piece of a session's memory, declared before it is taken.
#pragma once

#include "core/plan/layer_plan.h"

#include <cstdint>
#include <vector>

namespace kvscope {

/// On the CPU both tiers are ordinary memory.
enum class MemoryTier : std::uint8_t { Device, Host };
/// What the memory is for, as estimates divide it.
enum class Holds : std::uint8_t {
    Kv,     // keys and values that attention reads
    Index,  // what a method remembers of them for its choice
    Scratch // of a step, or of the prompt that is being read
};
/// How long the memory is needed. Memory of the prompts is given back before the first step takes memory of steps.
enum class Lifetime : std::uint8_t { Session, Prompt, Step };
/// The unit of `bytes`. One: the whole session, by its longest sequence where the memory depends on a length. All
/// others: each sequence, by its own length.
enum class Per : std::uint8_t { One, Row, KvHead, QueryHead };
/// Which layers have it; None: it belongs to no layer and exists once.
/// Resident: the layers whose blocks all stay on the device, where the common tiers keep them.
enum class LayerSet : std::uint8_t { None, All, Dense, Sparse, Offloaded, Resident };

/// What memory is for, by name. Several arrays may have the same key; a plan adds them up.
struct MemoryKind {
    /// Scratch memory, whose key is the same as its name.
    constexpr MemoryKind(const char* name) : key(name), what(name) {} // NOLINT(google-explicit-constructor)
    constexpr MemoryKind(const char* theKey, const char* theName, Holds held)
        : key(theKey), what(theName), holds(held) {}
    const char* key;  // unique within a plan
    const char* what; // for people, in a refusal: "page digests"
    Holds holds = Holds::Scratch;
};

struct MemoryNeed {
    const char* key = "";  // unique within a plan
    const char* what = ""; // for people, in a refusal: "page digests"
    MemoryTier tier = MemoryTier::Device;
    Holds holds = Holds::Index;
    Lifetime life = Lifetime::Session;
    Per per = Per::KvHead;
    std::int64_t bytes = 0; // of one `per` in one layer
    LayerSet layers = LayerSet::Sparse;
    bool asLongest = false; // every sequence takes as much as the one that takes most
};

/// How long one sequence gets.
struct ContextLength {
    int prompt = 0, added = 0;
    int tokens() const { return prompt + added; }
};

} // namespace kvscope
