// Numbers on their way to a file or to the clipboard: a worker thread writes, the window goes on.
#pragma once

#include "ui/frame/numbers.h"

#include <QObject>

#include <memory>

namespace kvscope::ui {

class NumbersExport final : public QObject {
    Q_OBJECT
public:
    explicit NumbersExport(QObject* parent = nullptr);
    ~NumbersExport() override; // stops what is under way

    // One at a time: what is under way is cancelled by the next.
    /// CSV, or a JSON object per line where `path` ends in .jsonl. The file appears when it is complete; until then it
    /// has another name, and stopped or failed it is gone.
    void toFile(NumberWriter numbers, const QString& path);
    /// Separated by tabs.
    void toClipboard(NumberWriter numbers);
    void cancel();
    bool running() const;

signals:
    void progressed(double share, qint64 bytes); // ten times a second at most
    /// Exactly once for every start. `path`: empty for the clipboard; `problem`: a sentence, or empty.
    void finished(const QString& path, const QString& problem, bool cancelled);

private:
    class Work;
    void start(NumberWriter numbers, const QString& path);
    std::unique_ptr<Work> work_; // under way
    quint64 started_ = 0;
};

} // namespace kvscope::ui
