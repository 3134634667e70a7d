// Converts CSV to JSON lines: one object per row, with the names of the header.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvscope::ui {

/// Converts CSV in parts that consist of whole lines, and returns the objects of each part. A field that is a number
/// becomes a number, an empty field becomes null, and any other becomes a string.
class JsonLines {
public:
    std::string convert(std::string_view csv);

private:
    std::vector<std::string> names_; // the header's names as JSON strings; empty before the header was converted
};

} // namespace kvscope::ui
