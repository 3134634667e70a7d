#include "core/session/option_text.h"

#include <charconv>
#include <cmath>
#include <fmt/format.h>

namespace kvscope {

void parseDeviceKv(const std::string& text, SessionOptions& options) {
    if (text.empty()) return;
    double value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    const std::string unit(end, text.data() + text.size());
    const struct {
        const char *binary, *shortForm;
        int shift;
    } units[] = {{"KiB", "K", 10}, {"MiB", "M", 20}, {"GiB", "G", 30}};
    if (code == std::errc() && value > 0 && value < 1e15) {
        if (unit.empty() && value == std::floor(value)) {
            options.deviceKvBlocks = std::int64_t(value);
            return;
        }
        for (const auto& known : units)
            if (unit == known.binary || unit == known.shortForm) {
                options.deviceKvBytes = std::int64_t(value * double(std::int64_t(1) << known.shift));
                return;
            }
    }
    throw Error(ErrorKind::BadInput, fmt::format("cannot read --device-kv '{}'", text),
                "give block slots per KV head (96) or the pool's size (256MiB)");
}

RunChoices choicesOf(const SessionOptions& options, bool denoises) {
    return {
        findMethod(options.method),   options.backend, options.offload, options.deviceKvBlocks || options.deviceKvBytes,
        options.sampling.temperature, denoises};
}

std::vector<std::string> listedValues(const char* option, const std::string& text) {
    std::vector<std::string> values;
    for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
        end = text.find(',', begin);
        values.push_back(text.substr(begin, end == std::string::npos ? end : end - begin));
        if (values.back().empty())
            throw Error(ErrorKind::BadInput, fmt::format("{} has an empty value in the list '{}'", option, text),
                        "leave out the comma that has no value beside it");
    }
    return values;
}

} // namespace kvscope
