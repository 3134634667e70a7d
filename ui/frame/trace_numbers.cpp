#include "ui/frame/trace_numbers.h"

#include "base/error.h"

#include <QFile>

#include <ostream>
#include <streambuf>

namespace kvscope::ui {

namespace {

/// A stream that writes to a sink. Exceptions of the sink come out of the functions of the stream.
class SinkStream final : private std::streambuf, public std::ostream {
public:
    explicit SinkStream(NumberSink& sink) : std::ostream(static_cast<std::streambuf*>(this)), sink_(sink) {
        exceptions(std::ios::badbit);
    }

private:
    std::streamsize xsputn(const char* text, std::streamsize count) override {
        sink_.add({text, std::size_t(count)});
        return count;
    }
    std::streambuf::int_type overflow(std::streambuf::int_type character) override {
        const char text = std::streambuf::traits_type::to_char_type(character);
        sink_.add({&text, 1});
        return character;
    }
    NumberSink& sink_;
};

ExportOptions optionsOf(const TracePart& part, NumberSink& sink) {
    ExportOptions options;
    options.runId = part.runId;
    options.range = part.range;
    options.interrupt = sink.interrupt();
    options.progress = [&sink](double share, std::string_view) { sink.progress(share); };
    return options;
}

} // namespace

NumberWriter perfettoOf(const TracePart& part) {
    return [part](NumberSink& sink) {
        SinkStream out(sink);
        exportChromeTrace(QFile::encodeName(part.path).toStdString(), out, optionsOf(part, sink));
    };
}

NumberWriter tableOf(const TracePart& part, ExportTable table) {
    return [part, table](NumberSink& sink) {
        SinkStream out(sink);
        const ExportResult result = exportTable(QFile::encodeName(part.path).toStdString(), table, ExportFormat::Csv,
                                                out, optionsOf(part, sink));
        if (result.rows > 0) return;
        throw Error(ErrorKind::BadInput, !result.note.empty() ? result.note
                                         : part.range         ? "nothing of it touches the marked range"
                                                              : "this run has nothing of it");
    };
}

} // namespace kvscope::ui
