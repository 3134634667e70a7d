#include "base/text_file.h"

#include "base/error.h"

#include <fmt/format.h>
#include <fstream>
#include <ios>
#include <vector>

namespace kvscope {

std::string readTextFile(const std::string& path, std::string_view what, std::size_t most) {
    std::ifstream file(path, std::ios::binary);
    std::string text;
    std::vector<char> piece(std::size_t(1) << 20);
    while (file.read(piece.data(), std::streamsize(piece.size())), file.gcount() > 0) {
        if (text.size() + std::size_t(file.gcount()) > most)
            throw Error(ErrorKind::BadInput, fmt::format("{} {} is longer than {} MiB", what, path, most >> 20),
                        "give a shorter file");
        text.append(piece.data(), std::size_t(file.gcount()));
    }
    if (!file.is_open() || file.bad())
        throw Error(ErrorKind::BadInput, fmt::format("cannot read {} {}", what, path),
                    "check its name and permissions; a folder is no text");
    return text;
}

} // namespace kvscope
