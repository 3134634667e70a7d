#include "core/serve/ledger.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope::serve {

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
