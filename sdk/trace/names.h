// Texts that a caller gave a number, so that it need not pass them again.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace kvscope::sdk {

class Names {
public:
    /// The number of the text, from 1 on. @throws Refusal: there is no room for more texts
    std::int32_t idOf(std::string text);
    /// A copy of the text. @throws Refusal: no text has the number
    std::string of(std::int32_t id) const;

private:
    mutable std::mutex mutex_;
    std::deque<std::string> texts_; // [id - 1]; a deque, so that the keys below stay where they are
    std::unordered_map<std::string_view, std::int32_t> ids_;
    std::size_t bytes_ = 0;
};

} // namespace kvscope::sdk
