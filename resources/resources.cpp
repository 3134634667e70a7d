#include "resources/resources.h"

#include <array>
#include <cstddef>

#define KVSCOPE_EMBEDDED(symbol)                                                                                       \
    extern "C" const std::byte kvscope_##symbol##_begin[];                                                             \
    extern "C" const std::byte kvscope_##symbol##_end[];
KVSCOPE_EMBEDDED(schema)
KVSCOPE_EMBEDDED(trace_format)
KVSCOPE_EMBEDDED(gpus)
KVSCOPE_EMBEDDED(long_document)
KVSCOPE_EMBEDDED(report_style)
KVSCOPE_EMBEDDED(report_script)
#undef KVSCOPE_EMBEDDED

namespace kvscope::resources {
namespace {

struct Entry {
    std::string_view path;
    const std::byte *begin, *end;
};

const std::array kEntries{
    Entry{"sql/schema.sql", kvscope_schema_begin, kvscope_schema_end},
    Entry{"docs/trace-format.md", kvscope_trace_format_begin, kvscope_trace_format_end},
    Entry{"gpus.json", kvscope_gpus_begin, kvscope_gpus_end},
    Entry{"prompts/long_document.txt", kvscope_long_document_begin, kvscope_long_document_end},
    Entry{"report/report.css", kvscope_report_style_begin, kvscope_report_style_end},
    Entry{"report/report.js", kvscope_report_script_begin, kvscope_report_script_end},
};

} // namespace

std::optional<std::span<const std::byte>> find(std::string_view path) {
    for (const Entry& entry : kEntries)
        if (entry.path == path) return std::span(entry.begin, entry.end);
    return std::nullopt;
}

std::optional<std::string_view> text(std::string_view path) {
    const auto bytes = find(path);
    if (!bytes) return std::nullopt;
    return std::string_view(reinterpret_cast<const char*>(bytes->data()), bytes->size());
}

} // namespace kvscope::resources
