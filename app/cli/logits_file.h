// Writes the logits of every step of a run as a safetensors file, to be compared with those of another program.
#pragma once

#include "core/session/decode_session.h"
#include "profiler/import/spill_file.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope::cli {

class LogitsFile {
public:
    /// Opens the file. @throws Error(Storage) if the file's folder cannot be written to; a long run learns of it before
    /// it begins
    LogitsFile(std::string path, std::size_t sequences, int vocab);

    /// Takes the logits of the step just done, of each sequence that was part of it, to disk: a long run has more of
    /// them than memory. @throws Error(Storage) when the disk is full
    void keep(const DecodeSession& session);
    /// Writes "logits.<sequence>", F32 [positions, vocab]: the prompt's last position, then every decode step.
    /// @throws Error(Storage) naming the file
    void write() const;

private:
    const std::string path_;
    const std::size_t rowBytes_; // of one position
    SpillFile rows_;             // as they came, beside the file that they become
    std::int64_t count_ = 0;
    std::vector<std::vector<std::int64_t>> places_; // [sequence][position] number of its row
};

} // namespace kvscope::cli
