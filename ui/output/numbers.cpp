#include "ui/output/numbers.h"

#include "kernels/base/error.h"

#include <algorithm>

namespace kvscope::ui {

namespace {

/// Keeps text until there are enough lines.
class TextSink final : public NumberSink {
public:
    explicit TextSink(std::ptrdiff_t lines = -1) : lines_(lines) {}
    void add(std::string_view lines) override {
        text_ += lines;
        if (lines_ >= 0 && std::count(text_.begin(), text_.end(), '\n') >= lines_)
            throw Error(ErrorKind::Cancelled, "enough lines");
    }
    const std::string& text() const { return text_; }

private:
    std::ptrdiff_t lines_; // -1: all
    std::string text_;
};

} // namespace

NumberWriter numbersOf(const QString& csv) {
    if (csv.isEmpty()) return {};
    return [text = csv.toStdString()](NumberSink& sink) { sink.add(text); };
}

QString textOf(const NumberWriter& numbers) {
    TextSink sink;
    if (numbers) numbers(sink);
    return QString::fromStdString(sink.text());
}

QString firstLinesOf(const NumberWriter& numbers, int lines) {
    TextSink sink(lines);
    try {
        if (numbers) numbers(sink);
    } catch (const Error& error) {
        if (error.kind != ErrorKind::Cancelled) throw;
    }
    return QString::fromStdString(sink.text()).section(QLatin1Char('\n'), 0, lines - 1);
}

} // namespace kvscope::ui
