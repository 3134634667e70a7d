#include "core/model/safetensors_writer.h"

#include "kernels/base/error.h"

#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>

namespace kvscope {

void writeSafetensors(const std::string& path, std::span<const NamedTensor> tensors,
                      const std::map<std::string, std::string>& metadata) {
    nlohmann::ordered_json header;
    header["__metadata__"] = metadata;
    std::size_t at = 0;
    for (const NamedTensor& tensor : tensors) {
        const std::size_t end = at + tensor.values.size_bytes();
        header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
        at = end;
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = text.size();
    const std::string partial = path + ".part";
    std::error_code failed;
    {
        std::ofstream out(partial, std::ios::binary | std::ios::trunc);
        out.write(reinterpret_cast<const char*>(&length),
                  sizeof length); // little-endian, as every machine we build for
        out << text;
        for (const NamedTensor& tensor : tensors)
            out.write(reinterpret_cast<const char*>(tensor.values.data()), std::streamsize(tensor.values.size_bytes()));
        out.close();
        if (!out) failed = std::make_error_code(std::errc::io_error);
    }
    if (!failed) std::filesystem::rename(partial, path, failed);
    if (!failed) return;
    std::error_code ignored;
    std::filesystem::remove(partial, ignored);
    throw Error(ErrorKind::Storage, fmt::format("{} cannot be written", path),
                "check the folder's permissions and the free space");
}

} // namespace kvscope
