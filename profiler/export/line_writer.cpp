#include "profiler/export/line_writer.h"

#include "base/error.h"
#include "base/json_text.h"

#include <ostream>

namespace kvscope {

void LineWriter::addCsv(std::string_view text) {
    const bool edges =
        !text.empty() && (text.front() == ' ' || text.back() == ' ' || text.front() == '\t' || text.back() == '\t');
    const bool formula =
        guardsFormulas_ && !text.empty() && std::string_view("=+-@\t\r").find(text.front()) != std::string_view::npos;
    if (!edges && !formula && text.find_first_of(",\"\r\n") == std::string_view::npos) {
        buffer_ += text;
        return;
    }
    buffer_ += '"';
    if (formula) buffer_ += '\'';
    for (const char c : text) {
        if (c == '"') buffer_ += '"';
        buffer_ += c;
    }
    buffer_ += '"';
}

void LineWriter::addJson(std::string_view text) { appendJsonString(buffer_, text); }

void LineWriter::flush() {
    out_.write(buffer_.data(), std::streamsize(buffer_.size()));
    out_.flush();
    buffer_.clear();
    if (!out_) throw Error(ErrorKind::Storage, "the export could not be written", "check where it goes");
}

} // namespace kvscope
