#include "ui/widgets/numbers_preview.h"

#include "base/error.h"

#include <QFuture>
#include <QPromise>
#include <QThreadPool>

#include <algorithm>
#include <string>
#include <utility>

namespace kvscope::ui {

namespace {

class FirstLines final : public NumberSink {
public:
    FirstLines(int lines, const std::atomic<bool>& stopped) : lines_(lines), stopped_(stopped) {}
    void add(std::string_view lines) override {
        text_ += lines;
        if (stopped_ || std::count(text_.begin(), text_.end(), '\n') >= lines_)
            throw Error(ErrorKind::Cancelled, "enough lines");
    }
    const std::atomic<bool>* interrupt() const override { return &stopped_; }
    QString text() const { return QString::fromStdString(text_).section(QLatin1Char('\n'), 0, lines_ - 1); }

private:
    int lines_;
    const std::atomic<bool>& stopped_;
    std::string text_;
};

} // namespace

void NumbersPreview::ask(NumberWriter numbers, int lines) {
    stop();
    if (!numbers) {
        emit ready({}, {});
        return;
    }
    using Answer = std::pair<QString, QString>;
    stopped_ = std::make_shared<std::atomic<bool>>(false);
    auto promise = std::make_shared<QPromise<Answer>>();
    promise->start();
    promise->future().then(this, [this, stopped = stopped_](const Answer& answer) {
        if (!*stopped) emit ready(answer.first, answer.second);
    });
    QThreadPool::globalInstance()->start([promise, numbers = std::move(numbers), lines, stopped = stopped_] {
        FirstLines sink(lines, *stopped);
        QString problem;
        try {
            numbers(sink);
        } catch (const Error& error) {
            if (error.kind != ErrorKind::Cancelled) problem = QString::fromStdString(oneLine(error));
        } catch (const std::exception& failure) {
            problem = QString::fromUtf8(failure.what());
        }
        promise->addResult(Answer{sink.text(), problem});
        promise->finish();
    });
}

void NumbersPreview::stop() {
    if (stopped_) *stopped_ = true;
    stopped_.reset();
}

} // namespace kvscope::ui
