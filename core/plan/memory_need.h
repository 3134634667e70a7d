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
/// How long it is needed. What is of the prompts only is gone before the first step takes what is of steps only.
enum class Lifetime : std::uint8_t { Session, Prompt, Step };
/// What `bytes` is for. One: the whole session, of the longest sequence where it depends on a length; all others:
/// every sequence by its own length.
enum class Per : std::uint8_t { One, Row, KvHead, QueryHead };
/// Which layers have it; None: it belongs to no layer and exists once.
enum class LayerSet : std::uint8_t { None, All, Dense, Sparse, Offloaded };

struct MemoryNeed {
    const char* key = "";  // unique within a plan
    const char* what = ""; // for people, in a refusal: "page digests"
    MemoryTier tier = MemoryTier::Device;
    Holds holds = Holds::Index;
    Lifetime life = Lifetime::Session;
    Per per = Per::KvHead;
    std::int64_t bytes = 0; // of one `per` in one layer
    LayerSet layers = LayerSet::Sparse;
};

/// How long one sequence gets.
struct ContextLength {
    int prompt = 0, added = 0;
    int tokens() const { return prompt + added; }
};

} // namespace kvscope
