// Limits what a template may use up. A template comes with a model: it is data of unknown origin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvscope::chat {

/// Thrown where a template does what cannot be done, or exceeds a limit. `message`: one sentence.
struct TemplateError {
    std::string message;
};

class Budget {
public:
    /// Counts steps: a node of the syntax tree executed, an item of a list taken.
    void step(std::uint64_t count = 1) {
        steps_ += count;
        if (steps_ > 4'000'000) throw TemplateError{"it takes too many steps"};
    }
    /// Counts a value that is printed or compared. A list may hold another one many times over, so every visit counts,
    /// as four steps, because it takes as long.
    void visit() { step(4); }
    /// Counts characters that are searched or compared, which takes far less time than a step.
    void read(std::size_t characters) { step(characters / 256); }
    /// Counts the characters and list items that the template makes.
    void grow(std::size_t amount) {
        grown_ += amount;
        if (grown_ > (std::size_t(512) << 20)) throw TemplateError{"it makes more than 512 MiB of text"};
    }

private:
    std::uint64_t steps_ = 0;
    std::size_t grown_ = 0;
};

} // namespace kvscope::chat
