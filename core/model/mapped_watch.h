// Notices that another program has changed a model's file while its mapped bytes are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

struct stat;

namespace kvscope {

class Model;

/// Call it first in main. Where a mapped file becomes shorter, reading what it has lost ends the process: from now on
/// with a sentence on standard error that names the file, and exit status 1.
void explainCutFiles();

/// While one of these is there, reading what a mapped file has lost gives zeros instead of ending the process. Whoever
/// has one asks refuseCutWeights or refuseWrittenWeights before what it computed counts as a result. Needs
/// explainCutFiles().
class CutFilesReadAsZeros {
public:
    CutFilesReadAsZeros() noexcept;
    ~CutFilesReadAsZeros();
    CutFilesReadAsZeros(const CutFilesReadAsZeros&) = delete;
    CutFilesReadAsZeros& operator=(const CutFilesReadAsZeros&) = delete;
};

/// Called by MappedFile when it has mapped a file, and before it unmaps it. asMapped: the file's status when it was
/// mapped.
void watchMapped(std::span<const std::byte> bytes, const std::string& path, const struct stat& asMapped);
void unwatchMapped(std::span<const std::byte> bytes);

/// The name of a file of the model that another program has written to since it was mapped, so that some of its weights
/// may be others; empty: none. A file that was deleted, or replaced by another file, does not change for those who have
/// mapped it, and neither does one whose times alone were set. Costs microseconds a file.
std::string fileWrittenSince(const Model& model);
/// The same for a folder, or for a file with those beside it. Empty: none.
std::string fileWrittenSince(const std::string& place);

/// To be called where something was computed with mapped weights, before it counts as a result. @throws Error(Storage)
/// that names the file of fileWrittenSince, where there is one
void refuseWrittenWeights(const Model& model);
/// The same where zeros were read in place of what some file has lost, and nothing else. Costs nothing where none were.
void refuseCutWeights(const Model& model);

} // namespace kvscope
