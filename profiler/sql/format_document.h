// What docs/trace-format.md, which is compiled into the program, says of tables and columns.
#pragma once

#include <string>
#include <string_view>

namespace kvscope {

struct ColumnHelp {
    std::string type, meaning; // plain text; empty: not described
};

/// The first paragraph under the table's heading, as plain text; empty if it is not described.
std::string tableHelp(std::string_view table);
/// A column that a table only names takes the meaning it has in a view.
ColumnHelp columnHelp(std::string_view table, std::string_view column);

} // namespace kvscope
