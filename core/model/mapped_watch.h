// Notices that another program has changed a model's file while its mapped bytes are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

struct stat;

namespace kvscope {

/// Call it first in main. Where a mapped file becomes shorter, reading what it has lost ends the process: from now on
/// with a sentence on standard error that names the file, and exit status 1.
void explainCutFiles();

/// What MappedFile says of the files that it maps.
void watchMapped(std::span<const std::byte> bytes, const std::string& path, const struct stat& asMapped);
void unwatchMapped(std::span<const std::byte> bytes);

/// The name of a weight file of the model that another program has written to since it was mapped, so that some of its
/// weights may be others; empty: none. A file that was deleted, or replaced by another file, does not change for those
/// who have mapped it. model: Model::path().
std::string fileWrittenSince(const std::string& model);

} // namespace kvscope
