// The first lines of numbers, made on a worker thread: some writers read a trace before they write anything.
#pragma once

#include "ui/frame/numbers.h"

#include <QObject>

#include <atomic>
#include <memory>

namespace kvscope::ui {

class NumbersPreview final : public QObject {
    Q_OBJECT
public:
    explicit NumbersPreview(QObject* parent = nullptr) : QObject(parent) {}
    ~NumbersPreview() override { stop(); }

    /// What was asked for before is not answered any more.
    void ask(NumberWriter numbers, int lines);
    /// Waits for nobody: a writer that does not look up goes on alone, and what it has to say is dropped.
    void stop();

signals:
    /// Lines, or a sentence about what went wrong; both empty: there are no numbers.
    void ready(const QString& lines, const QString& problem);

private:
    std::shared_ptr<std::atomic<bool>> stopped_; // of the newest request
};

} // namespace kvscope::ui
