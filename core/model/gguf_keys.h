// The metadata of a GGUF file's architecture: which keys are read, and which of the others are refused.
#pragma once

#include "core/model/gguf.h"

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

/// The keys of one architecture, which begin with its name. Functions take keys without that beginning, and remember
/// for which keys they were called.
class GgufKeys {
public:
    /// The file outlives the object.
    GgufKeys(const GgufFile& file, const char* prefix) : file_(file), prefix_(prefix) {}

    const std::string& origin() const { return file_.origin(); }
    /// The whole name of a key.
    std::string key(std::string_view name) const;

    // One value; nothing when the key is absent. @throws Error(BadInput) when it has another type
    std::optional<std::int64_t> integer(std::string_view name) const { return file_.integer(asked(name)); }
    std::optional<double> number(std::string_view name) const { return file_.number(asked(name)); }
    std::optional<bool> flag(std::string_view name) const { return file_.flag(asked(name)); }
    std::optional<std::string_view> text(std::string_view name) const { return file_.text(asked(name)); }

    /// A size or a count, small enough to calculate with. @throws Error(BadInput)
    std::optional<std::int64_t> count(std::string_view name) const;
    std::int64_t need(std::string_view name) const;
    [[noreturn]] void missing(std::string_view name) const;
    /// One number, or a list with the same number for every layer. @throws Error(Unsupported) for a list with different
    /// numbers
    std::optional<std::int64_t> integerOfAllLayers(std::string_view name) const;

    /// Judges the keys for which no function was called. Refuses a key that changes what llama.cpp or another program
    /// computes, unless its value changes nothing. Ignores a key that has no effect on logits.
    /// @return all other keys, ascending: unknown ones, and those of other architectures
    /// @throws Error(Unsupported) naming file, key and value
    std::vector<std::string> judgeUnread() const;

private:
    std::string asked(std::string_view name) const;

    const GgufFile& file_;
    const char* prefix_;
    mutable std::set<std::string, std::less<>> asked_;
};

} // namespace kvscope
