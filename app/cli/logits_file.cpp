#include "app/cli/logits_file.h"

#include "base/error.h"
#include "profiler/export/output_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <ostream>
#include <unistd.h>

namespace kvscope::cli {

LogitsFile::LogitsFile(std::string path, std::size_t sequences, int vocab)
    : path_(std::move(path)), rowBytes_(std::size_t(vocab) * sizeof(float)), places_(sequences) {
    const auto folder = std::filesystem::absolute(path_).parent_path();
    if (access(folder.c_str(), W_OK | X_OK) != 0)
        throw Error(ErrorKind::Storage, fmt::format("cannot write {}: {}", path_, std::strerror(errno)),
                    "give a file in a folder that exists and may be written to");
    rows_.open(folder.string());
}

void LogitsFile::keep(const DecodeSession& session) {
    for (std::size_t s = 0; s < places_.size(); ++s)
        if (const float* logits = session.logits(int(s))) {
            rows_.append(logits, rowBytes_);
            places_[s].push_back(count_++);
        }
}

void LogitsFile::write() const {
    nlohmann::ordered_json header;
    header["__metadata__"] = {{"made_by", "kvscope-cli run"}};
    const std::size_t vocab = rowBytes_ / sizeof(float);
    std::size_t at = 0;
    for (std::size_t s = 0; s < places_.size(); ++s) {
        const std::size_t end = at + places_[s].size() * rowBytes_;
        header[fmt::format("logits.{}", s)] = {
            {"dtype", "F32"}, {"shape", {places_[s].size(), vocab}}, {"data_offsets", {at, end}}};
        at = end;
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = text.size();
    OutputFile out(path_);
    out.stream().write(reinterpret_cast<const char*>(&length),
                       sizeof length); // little-endian, as every machine we build for
    out.stream() << text;
    std::string row(rowBytes_, '\0');
    for (const auto& positions : places_)
        for (const std::int64_t number : positions) {
            rows_.read(row.data(), row.size(), number * std::int64_t(rowBytes_));
            out.stream().write(row.data(), std::streamsize(row.size()));
        }
    out.commit();
}

} // namespace kvscope::cli
