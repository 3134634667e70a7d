#include "app/cli/vain.h"

#include <fmt/format.h>

namespace kvscope::cli {

void refuseVain(bool vain, const Options& command, std::initializer_list<const char*> options, const std::string& why) {
    if (!vain) return;
    for (const char* option : options)
        if (command.has(option))
            throw Error(ErrorKind::BadInput, fmt::format("{} has no effect {}", option, why),
                        fmt::format("leave {} out", option));
}

} // namespace kvscope::cli
