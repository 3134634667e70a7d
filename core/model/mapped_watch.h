// Notices that another program has changed a model's file while its mapped bytes are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

struct stat;

namespace kvscope {

class Model;

/// Call it first in main. A process that reads bytes of a mapped file which another program has cut off gets SIGBUS and
/// ends. After this call it first writes a sentence that names the file to standard error, and exits with status 1.
void explainCutFiles();

/// While an object of this class exists, bytes that were cut off a mapped file read as zeros and do not end the
/// process. Its owner calls refuseCutWeights or refuseWrittenWeights before it uses what it has computed from mapped
/// weights. Works after explainCutFiles().
class CutFilesReadAsZeros {
public:
    CutFilesReadAsZeros() noexcept;
    ~CutFilesReadAsZeros();
    CutFilesReadAsZeros(const CutFilesReadAsZeros&) = delete;
    CutFilesReadAsZeros& operator=(const CutFilesReadAsZeros&) = delete;
};

/// MappedFile calls watchMapped when it has mapped a file, and unwatchMapped before it unmaps the file. asMapped: the
/// file's status when it was mapped.
void watchMapped(std::span<const std::byte> bytes, const std::string& path, const struct stat& asMapped);
void unwatchMapped(std::span<const std::byte> bytes);

/// Returns the path of a mapped file of the model that another program has written to since it was mapped; its weights
/// may have changed. Empty: there is no such file. A file that was deleted or replaced by another does not count,
/// because its mapped bytes stay the same; nor does a file of which only the times were set. Takes microseconds a file.
std::string fileWrittenSince(const Model& model);
/// Does the same for the mapped files of one place: a folder, or a file and the files of its folder.
std::string fileWrittenSince(const std::string& place);

/// Call it when something was computed from mapped weights, before the result is used. @throws Error(Storage) that
/// names the file, if fileWrittenSince finds one
void refuseWrittenWeights(const Model& model);
/// Calls refuseWrittenWeights if any cut-off bytes of a mapped file have been read as zeros; otherwise does nothing.
void refuseCutWeights(const Model& model);

} // namespace kvscope
