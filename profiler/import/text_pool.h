// Stores every different text once and numbers the texts 0, 1, 2, ... It makes them fit to be shown: valid UTF-8,
// without control characters, cut after kLongest bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvscope {

class TextPool {
public:
    static constexpr std::size_t kLongest = 1024; // bytes; names of C++ templates can fill pages

    std::uint32_t id(std::string_view text);
    const std::string& text(std::uint32_t id) const { return *texts_[id]; }
    std::size_t size() const { return texts_.size(); }

private:
    struct Hash {
        using is_transparent = void;
        std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
    };
    std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> ids_;
    std::vector<const std::string*> texts_; // [id] points to a key of ids_; keys never move in memory
};

} // namespace kvscope
