#include "profiler/export/line_writer.h"

#include "core/model/tokenizer.h"
#include "kernels/base/error.h"

#include <ostream>

namespace kvscope {

void LineWriter::addCsv(std::string_view text) {
    const bool edges =
        !text.empty() && (text.front() == ' ' || text.back() == ' ' || text.front() == '\t' || text.back() == '\t');
    if (!edges && text.find_first_of(",\"\r\n") == std::string_view::npos) {
        buffer_ += text;
        return;
    }
    buffer_ += '"';
    for (const char c : text) {
        if (c == '"') buffer_ += '"';
        buffer_ += c;
    }
    buffer_ += '"';
}

void LineWriter::addJson(std::string_view text) {
    buffer_ += '"';
    for (const char c : toValidUtf8(text)) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\')
            (buffer_ += '\\') += c;
        else if (c == '\n')
            buffer_ += "\\n";
        else if (c == '\r')
            buffer_ += "\\r";
        else if (c == '\t')
            buffer_ += "\\t";
        else if (byte < 0x20 || byte == 0x7f)
            add("\\u{:04x}", unsigned(byte));
        else
            buffer_ += c;
    }
    buffer_ += '"';
}

void LineWriter::flush() {
    out_.write(buffer_.data(), std::streamsize(buffer_.size()));
    out_.flush();
    buffer_.clear();
    if (!out_) throw Error(ErrorKind::Storage, "the export could not be written", "check that the disk has space");
}

} // namespace kvscope
