#include "profiler/format/span_name.h"

#include <charconv>

namespace kvscope {

std::string SpanName::shown() const {
    std::string text;
    if (!stage.empty()) (text += stage) += ": ";
    if (bytes >= 0) (text += std::to_string(bytes)) += " bytes ";
    return text += name;
}

SpanName SpanName::ofWhole(SpanRecord::Kind kind, std::string_view whole) {
    if (kind == SpanRecord::Kind::Kernel) {
        const auto colon = whole.find(": ");
        if (colon == std::string_view::npos || StageId::named(whole.substr(0, colon)).isNone()) return {{}, -1, whole};
        return {whole.substr(0, colon), -1, whole.substr(colon + 2)};
    }
    if (kind == SpanRecord::Kind::Copy) {
        constexpr std::string_view kBytes = " bytes ";
        std::int64_t bytes = -1;
        const char* const end = whole.data() + whole.size();
        const auto number = std::from_chars(whole.data(), end, bytes);
        const std::string_view rest(number.ptr, std::size_t(end - number.ptr));
        if (number.ec == std::errc() && bytes >= 0 && rest.starts_with(kBytes))
            return {{}, bytes, rest.substr(kBytes.size())};
    }
    return {{}, -1, whole};
}

} // namespace kvscope
