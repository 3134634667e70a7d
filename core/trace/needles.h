// Where the facts lie that a prompt hides, and what is asked for: key `needles` of run_meta. Whoever reads the trace
// can then say whether the fact was found.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace kvscope {

/// One fact in the prompt of a sequence.
struct NeedlePlace {
    int sequence = 0;
    int first = 0, tokens = 0; // its tokens in the prompt
    std::string name, value;   // "silver lantern", "73398"
    bool asked = false;        // the value is the answer that the prompt asks for

    friend bool operator==(const NeedlePlace&, const NeedlePlace&) = default;
};

/// As it stands in the trace: a JSON array of objects.
std::string needlesJson(std::span<const NeedlePlace> needles);
/// Reads needlesJson. Elements that are no needles are left out; a text that is no JSON array gives an empty list.
std::vector<NeedlePlace> parseNeedles(const std::string& json);

} // namespace kvscope
