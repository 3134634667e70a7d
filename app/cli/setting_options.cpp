#include "app/cli/setting_options.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope::cli {

std::vector<std::pair<std::string, std::string>> parseSettings(const char* option,
                                                               const std::vector<std::string>& texts) {
    std::vector<std::pair<std::string, std::string>> settings;
    for (const std::string& text : texts) {
        const auto equals = text.find('=');
        if (equals == std::string::npos || equals == 0)
            throw Error(ErrorKind::BadInput, fmt::format("cannot read {} '{}'", option, text),
                        fmt::format("write {} key=value", option));
        std::string key = text.substr(0, equals), value = text.substr(equals + 1);
        const auto before =
            std::find_if(settings.begin(), settings.end(), [&](const auto& s) { return s.first == key; });
        if (before != settings.end())
            throw Error(ErrorKind::BadInput,
                        fmt::format("{} gives '{}' twice: {} and {}", option, key, before->second, value),
                        "leave one of them out");
        settings.emplace_back(std::move(key), std::move(value));
    }
    return settings;
}

} // namespace kvscope::cli
