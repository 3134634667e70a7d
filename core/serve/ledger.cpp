#include "core/serve/ledger.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope::serve {

Amounts& Amounts::operator+=(const Amounts& other) {
    rows += other.rows, host += other.host, device += other.device, scratch += other.scratch;
    hard += other.hard, workingSets += other.workingSets;
    return *this;
}

Amounts& Amounts::operator-=(const Amounts& other) {
    rows -= other.rows, host -= other.host, device -= other.device, scratch -= other.scratch;
    hard -= other.hard, workingSets -= other.workingSets;
    return *this;
}

Limit lacking(const Budget& budget, const Amounts& used, const Amounts& need) {
    const Amounts sum = used + need;
    if (sum.rows > budget.rows) return Limit::Rows;
    if (sum.host > budget.host) return Limit::HostMemory;
    if (sum.device > budget.device) return Limit::DeviceMemory;
    if (sum.scratch > budget.scratch) return Limit::PrefillScratch;
    if (sum.device + sum.hard > budget.device) return Limit::HardNeed;
    if (budget.workingSetControl && sum.device + sum.workingSets > budget.device) return Limit::WorkingSets;
    return Limit::None;
}

Amounts Ledger::of(RequestId id) const {
    const auto found = entries_.find(id);
    return found == entries_.end() ? Amounts{} : found->second;
}

void Ledger::reserve(RequestId id, const Amounts& need, bool alone) {
    // lacking() tests working sets last, so everything else fits where they are short
    const Limit limit = lacking(budget_, used_, need);
    if (limit != Limit::None && !(alone && limit == Limit::WorkingSets))
        throw Error(ErrorKind::OutOfMemory, fmt::format("request {} does not fit: {}", id, nameOf(limit)));
    entries_[id] += need;
    used_ += need;
}

void Ledger::giveBack(RequestId id, const Amounts& part) {
    const auto found = entries_.find(id);
    const Amounts left = of(id) - part;
    const std::int64_t least = std::min({left.rows, left.host, left.device, left.scratch, left.hard, left.workingSets});
    if (found == entries_.end() || least < 0)
        throw Error(ErrorKind::BadInput, fmt::format("request {} gives back more than it has reserved", id));
    found->second = left;
    used_ -= part;
}

void Ledger::release(RequestId id) {
    const auto found = entries_.find(id);
    if (found == entries_.end()) return;
    used_ -= found->second;
    entries_.erase(found);
}

void Ledger::setWorkingSet(RequestId id, std::int64_t bytes) {
    const auto found = entries_.find(id);
    if (found == entries_.end()) throw Error(ErrorKind::BadInput, fmt::format("request {} has nothing reserved", id));
    used_.workingSets += bytes - found->second.workingSets;
    found->second.workingSets = bytes;
}

} // namespace kvscope::serve
