// Which resident block leaves when a replay loads another. A policy = one file with one class and one line in
// registry.cpp.
#pragma once

#include "profiler/replay/selection_trace.h"

#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

/// A block of a request that is resident now.
struct BlockUse {
    int request = 0;           // index into HeadTrace::requests
    std::size_t reference = 0; // index into HeadTrace::blocks
    std::int32_t block = 0;
    int slot = 0;
    bool entered = false; // it was not resident before this request
};

/// Replays one head. For every request first the resident blocks are used, then the others are placed and used, both in
/// ascending order.
class ReplayPolicy {
public:
    virtual ~ReplayPolicy() = default;
    /// Before the first request; head.tail, if any, is in slot 0.
    virtual void begin(const HeadTrace& head, int slots) = 0;
    /// The slot that a missing block takes. resident[slot] = block or -1; pinned[slot] != 0: it holds a block of the
    /// current request and must not be chosen; at least one slot is not pinned.
    virtual int place(std::int32_t block, std::span<const std::int32_t> resident,
                      std::span<const std::uint8_t> pinned) = 0;
    virtual void use(const BlockUse& use) = 0;
};

/// Takes an empty slot, else the slot of the lowest rank; equal ranks: the lower slot.
class RankedPolicy : public ReplayPolicy {
public:
    void begin(const HeadTrace& head, int slots) override;
    int place(std::int32_t block, std::span<const std::int32_t> resident,
              std::span<const std::uint8_t> pinned) override;

protected:
    struct Rank {
        std::int64_t first = 0, second = 0;
        auto operator<=>(const Rank&) const = default;
    };
    Rank& rank(int slot) { return ranks_[std::size_t(slot)]; }

private:
    std::vector<Rank> ranks_;
};

struct ReplayPolicyEntry {
    std::string name, help;
    std::unique_ptr<ReplayPolicy> (*make)() = nullptr;
};

std::span<const ReplayPolicyEntry> replayPolicies();
/// @throws Error(BadInput) listing the known names
const ReplayPolicyEntry& findReplayPolicy(std::string_view name);

ReplayPolicyEntry keepSelectedReplay();
ReplayPolicyEntry lruReplay();
ReplayPolicyEntry fifoReplay();
ReplayPolicyEntry lfuReplay();
ReplayPolicyEntry arcReplay();
ReplayPolicyEntry beladyReplay();

} // namespace kvscope
