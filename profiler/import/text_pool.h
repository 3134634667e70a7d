// Every text once, under a small number. Texts are made fit to be shown: valid UTF-8, not endless.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvscope {

class TextPool {
public:
    static constexpr std::size_t kLongest = 1024; // bytes; names of templates go on for pages

    std::uint32_t id(std::string_view text);
    const std::string& text(std::uint32_t id) const { return *texts_[id]; }
    std::size_t size() const { return texts_.size(); }

private:
    struct Hash {
        using is_transparent = void;
        std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
    };
    std::unordered_map<std::string, std::uint32_t, Hash, std::equal_to<>> ids_;
    std::vector<const std::string*> texts_; // the keys of ids_, which stay where they are
};

} // namespace kvscope
