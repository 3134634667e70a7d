#include "ui/frame/numbers.h"

namespace kvscope::ui {

namespace {

class TextSink final : public NumberSink {
public:
    void add(std::string_view lines) override { text_ += lines; }
    const std::string& text() const { return text_; }

private:
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

} // namespace kvscope::ui
