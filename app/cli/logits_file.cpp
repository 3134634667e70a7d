#include "app/cli/logits_file.h"

#include "core/model/safetensors_writer.h"
#include "kernels/base/error.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <unistd.h>

namespace kvscope::cli {

LogitsFile::LogitsFile(std::string path, std::size_t sequences, int vocab)
    : path_(std::move(path)), vocab_(vocab), values_(sequences) {
    const auto folder = std::filesystem::absolute(path_).parent_path();
    if (access(folder.c_str(), W_OK | X_OK) != 0)
        throw Error(ErrorKind::Storage, fmt::format("cannot write {}: {}", path_, std::strerror(errno)),
                    "give a file in a folder that exists and may be written to");
}

void LogitsFile::keep(const DecodeSession& session) {
    for (std::size_t s = 0; s < values_.size(); ++s)
        if (const float* logits = session.logits(int(s))) values_[s].insert(values_[s].end(), logits, logits + vocab_);
}

void LogitsFile::write() const {
    std::vector<NamedTensor> tensors;
    for (std::size_t s = 0; s < values_.size(); ++s)
        tensors.push_back(
            {fmt::format("logits.{}", s), {std::int64_t(values_[s].size()) / vocab_, vocab_}, values_[s]});
    writeSafetensors(path_, tensors, {{"made_by", "kvscope-cli run"}});
}

} // namespace kvscope::cli
