#include "core/transfer/link.h"

#include "base/error.h"

#include <charconv>
#include <cmath>
#include <fmt/format.h>

namespace kvscope {

std::string Link::describe() const {
    return fmt::format("{}, {:g} GB/s, {:g} us per transfer (modelled)", name, gigabytesPerSecond, latencyUs);
}

Link Link::parse(std::string_view text) {
    // The bandwidths at which a large pinned copy runs over x16 links; nominal bandwidths are higher.
    if (text == "pcie5") return {"pcie5", 55.5, 10};
    if (text == "pcie4") return {"pcie4", 26, 10};
    double value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value < 1e-6 || value > 1e6)
        throw Error(ErrorKind::BadInput, fmt::format("unknown link '{}'", text),
                    "use pcie4, pcie5 or a bandwidth of 1e-06 to 1e+06 GB/s, e.g. --link 20");
    return {"custom", value, 10};
}

} // namespace kvscope
