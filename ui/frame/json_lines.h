// CSV as JSON lines: an object per row, named by the header.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvscope::ui {

/// Takes CSV in parts of whole lines and gives the objects of each part. Fields that are numbers are numbers, empty
/// ones null, others text.
class JsonLines {
public:
    std::string convert(std::string_view csv);

private:
    std::vector<std::string> names_; // as JSON, with quotes; empty until the header came
};

} // namespace kvscope::ui
