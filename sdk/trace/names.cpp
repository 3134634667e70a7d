#include "sdk/trace/names.h"

#include "sdk/trace/handles.h"

#include <utility>

namespace kvscope::sdk {

std::int32_t Names::idOf(std::string text) {
    constexpr std::size_t most = std::size_t(1) << 20, mostBytes = std::size_t(64) << 20;
    const std::lock_guard lock(mutex_);
    if (const auto found = ids_.find(text); found != ids_.end()) return found->second;
    if (texts_.size() >= most || bytes_ + text.size() > mostBytes)
        refuse(KVTRACE_UNSUPPORTED, "a writer holds 2^20 texts and 64 MiB of them; give spans names that repeat, and "
                                    "put what differs into args");
    bytes_ += text.size();
    const std::string& kept = texts_.emplace_back(std::move(text));
    const auto id = std::int32_t(texts_.size());
    ids_.emplace(kept, id);
    return id;
}

std::string Names::of(std::int32_t id) const {
    const std::lock_guard lock(mutex_);
    if (id < 1 || std::size_t(id) > texts_.size())
        refuse(KVTRACE_INVALID, "name ", std::to_string(id), " is none; pass a number of kvtrace_intern");
    return texts_[std::size_t(id) - 1];
}

} // namespace kvscope::sdk
