// Who has reserved how much of what. The gate that asks whether a request fits and the account of what is taken are one
// function here, so that they cannot drift apart.
#pragma once

#include <cstdint>
#include <unordered_map>

namespace kvscope::serve {

using RequestId = std::int64_t;

/// What bounds a plan, and why a request waits or is refused.
enum class Limit : std::uint8_t {
    None,
    Rows,           // every row has a request
    HostMemory,     // the host store cannot hold n + max_tokens besides what is reserved
    DeviceMemory,   // the device cannot hold the index and the newest blocks
    PrefillScratch, // no scratch memory for another prompt
    WorkingSets,    // the sum of working sets would exceed M_avl
    HardNeed,       // the selections of one layer would exceed M_avl
    PrefillLane,    // as many prompts are being read as may be
    PausedFirst,    // paused requests are resumed before anything is admitted
    HoldersFirst,   // a prompt that is being read waits for memory
    Barrier,        // an older request may not be overtaken any more
    TimeBudget,     // the iteration's milliseconds are used up
    TokenBudget,    // the iteration's tokens are used up
    QueueFull,      // refused: as many requests wait as may
    TooLarge,       // refused: more than the whole budget
};
constexpr int kLimits = int(Limit::TooLarge) + 1;
constexpr const char* nameOf(Limit limit) {
    constexpr const char* names[] = {"none",         "rows",        "host_memory",  "device_memory", "prefill_scratch",
                                     "working_sets", "hard_need",   "prefill_lane", "paused_first",  "holders_first",
                                     "barrier",      "time_budget", "token_budget", "queue_full",    "too_large"};
    return names[int(limit)];
}

/// Amounts of everything that is counted. Rows are places in a step's batch; all others are bytes.
struct Amounts {
    std::int64_t rows = 0, host = 0, device = 0, scratch = 0;
    std::int64_t hard = 0;        // sum over running requests of one layer's selection
    std::int64_t workingSets = 0; // sum over running requests of their estimates

    Amounts& operator+=(const Amounts& other);
    Amounts& operator-=(const Amounts& other);
    friend Amounts operator+(Amounts a, const Amounts& b) { return a += b; }
    friend Amounts operator-(Amounts a, const Amounts& b) { return a -= b; }
    bool operator==(const Amounts&) const = default;
};

/// What there is. `hard` and `workingSets` share the device with `device`: what that leaves of it is M_avl.
struct Budget {
    std::int64_t rows = 0, host = 0, device = 0, scratch = 0;
    bool workingSetControl = true; // off: the sum of working sets bounds nothing

    /// M_avl in bytes: what fixed reservations leave of the device. Not negative while the gate is kept.
    std::int64_t available(const Amounts& used) const { return device - used.device; }
};

/// The gate. @return what is short for `need` on top of `used`, the first in the order of Limit; None: it fits
Limit lacking(const Budget& budget, const Amounts& used, const Amounts& need);

/// What each request has reserved, and the sums. All calls are of one thread.
class Ledger {
public:
    explicit Ledger(const Budget& budget) : budget_(budget) {}

    const Budget& budget() const { return budget_; }
    const Amounts& used() const { return used_; }
    /// What the request has reserved; nothing where it has no entry.
    Amounts of(RequestId id) const;
    std::size_t entries() const { return entries_.size(); }

    /// Adds to what the request has. The gate must let `need` pass but for working sets when `alone` is set: a request
    /// that runs alone may exceed M_avl by its estimate.
    /// @throws Error(OutOfMemory) naming the limit, and then nothing has changed
    void reserve(RequestId id, const Amounts& need, bool alone = false);
    /// Takes back a part of what the request has. @throws Error(BadInput) where it has less
    void giveBack(RequestId id, const Amounts& part);
    /// Takes back all that the request has; nothing happens where it has no entry.
    void release(RequestId id);
    /// A running request's new estimate. It may bring the sum above M_avl: the scheduler's pauses answer that.
    void setWorkingSet(RequestId id, std::int64_t bytes);

private:
    Budget budget_;
    Amounts used_;
    std::unordered_map<RequestId, Amounts> entries_;
};

} // namespace kvscope::serve
