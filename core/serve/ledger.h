// Which request has reserved how much of what. One function tests whether a request fits and takes what it needs, so
// that the test and the account cannot differ.
#pragma once

#include <cstdint>
#include <unordered_map>

namespace kvscope::serve {

using RequestId = std::int64_t;

/// What limits a plan, and why a request waits or is refused.
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

    // Inline, like lacking(): a plan adds and tests for every waiting request.
    Amounts& operator+=(const Amounts& other) {
        rows += other.rows, host += other.host, device += other.device, scratch += other.scratch;
        hard += other.hard, workingSets += other.workingSets;
        return *this;
    }
    Amounts& operator-=(const Amounts& other) {
        rows -= other.rows, host -= other.host, device -= other.device, scratch -= other.scratch;
        hard -= other.hard, workingSets -= other.workingSets;
        return *this;
    }
    friend Amounts operator+(Amounts a, const Amounts& b) { return a += b; }
    friend Amounts operator-(Amounts a, const Amounts& b) { return a -= b; }
    bool operator==(const Amounts&) const = default;
};

/// What the server has. `hard` and `workingSets` share the device's memory with `device`: M_avl is what the
/// reservations of `device` leave of it.
struct Budget {
    std::int64_t rows = 0, host = 0, device = 0, scratch = 0;
    bool workingSetControl = true; // off: the sum of working sets bounds nothing

    /// M_avl in bytes: what fixed reservations leave of the device. Not negative as long as every reservation passed
    /// lacking().
    std::int64_t available(const Amounts& used) const { return device - used.device; }
};

/// Tests whether a request fits. @return what is short for `need` on top of `used`, the first that is found short, with
/// working sets last; None: it fits
inline Limit lacking(const Budget& budget, const Amounts& used, const Amounts& need) {
    const Amounts sum = used + need;
    if (sum.rows > budget.rows) return Limit::Rows;
    if (sum.host > budget.host) return Limit::HostMemory;
    if (sum.device > budget.device) return Limit::DeviceMemory;
    if (sum.scratch > budget.scratch) return Limit::PrefillScratch;
    if (sum.device + sum.hard > budget.device) return Limit::HardNeed;
    if (budget.workingSetControl && sum.device + sum.workingSets > budget.device) return Limit::WorkingSets;
    return Limit::None;
}

/// What each request has reserved, and the sums. One thread makes all calls.
class Ledger {
public:
    explicit Ledger(const Budget& budget) : budget_(budget) {}

    const Budget& budget() const { return budget_; }
    const Amounts& used() const { return used_; }
    /// What the request has reserved; nothing where it has no entry.
    Amounts of(RequestId id) const;
    std::size_t entries() const { return entries_.size(); }

    /// Adds `need` to what the request has. lacking() must find nothing short; with `alone`, for a request that runs
    /// alone, its working set may exceed M_avl.
    /// @throws Error(OutOfMemory) naming the limit, and then nothing has changed
    void reserve(RequestId id, const Amounts& need, bool alone = false);
    /// Takes back a part of what the request has. @throws Error(BadInput) where it has less
    void giveBack(RequestId id, const Amounts& part);
    /// Takes back all that the request has; nothing happens where it has no entry.
    void release(RequestId id);
    /// Replaces the estimated working set of a running request. The sum may exceed M_avl then; the scheduler pauses
    /// requests in answer.
    void setWorkingSet(RequestId id, std::int64_t bytes);

private:
    Budget budget_;
    Amounts used_;
    std::unordered_map<RequestId, Amounts> entries_;
};

} // namespace kvscope::serve
