// Settings as people read them: "12 total blocks" and "16 device slots", where traces and command lines have
// "total_blocks" and "device-kv".
#pragma once

#include <string>
#include <string_view>

namespace kvscope {

/// A setting in words, e.g. "12 total blocks", "1 sink block", "temperature 0.7", "offload off". A key whose last word
/// counts something has its number in front. A key with a symbol of a paper in it, such as "k_q", stays as it is.
std::string settingWords(std::string_view key, std::string_view value);

/// The words of a text such as "total_blocks 4", a key and its value; any other text as it is.
std::string changeWords(const std::string& change);

} // namespace kvscope
