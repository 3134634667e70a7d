// A short text that tells the weight files of two models apart without reading all of them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

/// "1:FILES:BYTES:HASH" of weight files in the order of their names. The hash is 64-bit FNV-1a over each file's size
/// (8 bytes, little-endian) and tensor header, then over 64 pages of 4096 bytes at equal distances over all files laid
/// end to end. Header: of safetensors its length and itself, of any other file the first MiB; a file that is shorter is
/// taken as far as it goes.
std::string fingerprintOf(const std::vector<std::span<const std::byte>>& files);

} // namespace kvscope
