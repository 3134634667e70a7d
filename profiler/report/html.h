// The report as one HTML file: style, script, charts and pictures are inside, and nothing is fetched. The page is also
// well-formed XML.
#pragma once

#include "profiler/report/report.h"

#include <string>
#include <vector>

namespace kvscope::reports {

/// A picture of a view that the page itself cannot draw.
struct Picture {
    std::string title, caption;
    std::string png; // the file's bytes
    int width = 0;   // logical pixels
};

std::string html(const Report& report, const std::vector<Picture>& pictures = {});

/// Replaces the file only when all of it could be written. @throws Error(Storage)
void writeHtml(const Report& report, const std::string& path, const std::vector<Picture>& pictures = {});

} // namespace kvscope::reports
