// Tokens by id and ids by token.
#pragma once

#include "base/indexed.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvscope::tokenizing {

inline constexpr std::int32_t kNoToken = -1;
inline constexpr std::int32_t kLargestId = (1 << 22) - 1; // no published vocabulary comes near

/// Written forms; ids without a token have an empty one. Not to be changed once ids are looked up.
class Vocabulary {
public:
    Vocabulary() = default;
    explicit Vocabulary(std::vector<std::string> written) : written_(std::move(written)) {
        ids_.reserve(written_.size());
        for (std::size_t id = 0; id < written_.size(); ++id) {
            if (written_[id].empty()) continue;
            ids_.emplace(written_[id], std::int32_t(id)); // the first of equal ones
            longest_ = std::max(longest_, written_[id].size());
        }
    }
    Vocabulary(const Vocabulary&) = delete; // the keys are views into the texts
    Vocabulary& operator=(const Vocabulary&) = delete;
    Vocabulary(Vocabulary&&) = default;
    Vocabulary& operator=(Vocabulary&&) = default;

    std::int32_t find(std::string_view text) const {
        const auto found = ids_.find(text);
        return found == ids_.end() ? kNoToken : found->second;
    }
    const std::string& at(std::int32_t id) const { return written_[id]; }
    std::size_t size() const { return written_.size(); }
    std::size_t longest() const { return longest_; } // bytes

private:
    Numbered<std::string> written_;
    std::unordered_map<std::string_view, std::int32_t> ids_;
    std::size_t longest_ = 0;
};

} // namespace kvscope::tokenizing
