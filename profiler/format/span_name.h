// The name of a span as people see it, and the fields it is made of: what a kernel was launched for, the bytes that a
// copy moved, and the name proper. Traces keep the fields apart; older ones, and those of other tools, hold the whole.
#pragma once

#include "core/trace/trace_sink.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace kvscope {

struct SpanName {
    std::string_view stage;  // "stage2"; empty: none
    std::int64_t bytes = -1; // -1: not known
    std::string_view name;   // "selectKernel<128, 2>", "host to device"
    /// "stage2: selectKernel<128, 2>", "16384 bytes host to device".
    std::string shown() const;
    /// The fields of a name that was stored as a whole: "stage2: selectKernel<128, 2>" of a kernel, "16384 bytes host
    /// to device" of a copy. Every other name stands for itself.
    static SpanName ofWhole(SpanRecord::Kind kind, std::string_view whole);
};

inline constexpr std::string_view kSetName = "set"; // of memory that is set; a copy is named by its direction

/// SpanName::shown in SQL, of a row `s` of table `span` with its name's text `n`; kStageJoin comes behind the other
/// joins. The views in schema.sql say the same.
inline constexpr const char* kShownName =
    "coalesce(g.value || ': ', '') || coalesce(s.bytes || ' bytes ', '') || n.value";
inline constexpr const char* kStageJoin = "LEFT JOIN text g ON g.id = s.stage";

} // namespace kvscope
