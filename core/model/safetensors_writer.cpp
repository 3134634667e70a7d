#include "core/model/safetensors_writer.h"

#include "base/error.h"
#include "base/whole_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <ostream>

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
    const std::string failure = writeWholeFile(path, [&](std::ostream& out) {
        // little-endian, as every machine we build for
        out.write(reinterpret_cast<const char*>(&length), sizeof length);
        out << text;
        for (const NamedTensor& tensor : tensors)
            out.write(reinterpret_cast<const char*>(tensor.values.data()), std::streamsize(tensor.values.size_bytes()));
    });
    if (failure.empty()) return;
    throw Error(ErrorKind::Storage, fmt::format("{} cannot be written: {}", path, failure),
                "check the folder's permissions and the free space");
}

} // namespace kvscope
