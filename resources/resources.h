// Files compiled into the program.
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace kvscope::resources {

/// Bytes of an embedded file by its path below resources/, e.g. "sql/schema.sql", or "docs/trace-format.md";
/// 64-byte aligned.
std::optional<std::span<const std::byte>> find(std::string_view path);

/// The same as text.
std::optional<std::string_view> text(std::string_view path);

} // namespace kvscope::resources
