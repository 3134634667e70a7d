// What tokenizer_config.json says of a tokenizer that texts are read without, or that transformers does otherwise.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvscope {

class Tokenizer;

/// Notes for `info` and `run`, one sentence each, on the tokenizer that was read of the folder: BOS and EOS that
/// tokenizer_config.json and tokenizer.json disagree about, and special tokens that the former names and the latter
/// does not have.
std::vector<std::string> tokenizerNotes(const std::filesystem::path& folder, const Tokenizer& tokenizer);

} // namespace kvscope
