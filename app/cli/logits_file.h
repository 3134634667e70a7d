// What a run computed, for a comparison with another program: the logits of every step as a safetensors file.
#pragma once

#include "core/session/decode_session.h"

#include <string>
#include <vector>

namespace kvscope::cli {

class LogitsFile {
public:
    /// @throws Error(Storage) when the file's folder cannot be written to: better now than after a long run
    LogitsFile(std::string path, std::size_t sequences, int vocab);

    /// Keeps the logits of the step just done, of each sequence that was part of it.
    void keep(const DecodeSession& session);
    /// Writes "logits.<sequence>", F32 [positions, vocab]: the prompt's last position, then every decode step.
    /// @throws Error(Storage) naming the file
    void write() const;

private:
    const std::string path_;
    const int vocab_;
    std::vector<std::vector<float>> values_; // [sequence], position after position
};

} // namespace kvscope::cli
