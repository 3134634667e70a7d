// Makes the first lines of a view's numbers for a preview. It uses a worker thread, because some writers read a whole
// trace before they write the first line.
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

    /// Asks for the first lines of `numbers`. A request that is still running is not answered any more.
    void ask(NumberWriter numbers, int lines);
    /// Gives up the running request without waiting for it. A writer that does not look at NumberSink::interrupt goes
    /// on until it ends, and its answer is dropped.
    void stop();

signals:
    /// `lines`: the first lines as CSV. `problem`: a sentence about what went wrong. Both are empty if there are no
    /// numbers.
    void ready(const QString& lines, const QString& problem);

private:
    std::shared_ptr<std::atomic<bool>> stopped_; // set to stop the newest request
};

} // namespace kvscope::ui
