// Exports numbers to a file or to the clipboard. A worker thread writes, so that the window keeps responding.
#pragma once

#include "ui/frame/numbers.h"

#include <QObject>

#include <memory>

namespace kvscope::ui {

class NumbersExport final : public QObject {
    Q_OBJECT
public:
    explicit NumbersExport(QObject* parent = nullptr);
    ~NumbersExport() override; // cancels the running export and waits for its thread

    // One export runs at a time: a new one cancels the running one.
    /// Writes CSV, or JSON lines if `path` ends in .jsonl. The file has another name until it is complete. If the
    /// export is stopped or fails, the incomplete file is removed.
    void toFile(NumberWriter numbers, const QString& path);
    /// Copies the numbers separated by tabs.
    void toClipboard(NumberWriter numbers);
    void cancel();
    bool running() const;

signals:
    void progressed(double share, qint64 bytes); // emitted at most ten times a second
    /// Emitted exactly once for every export. `path`: empty for the clipboard. `problem`: a sentence about what went
    /// wrong; empty: nothing did.
    void finished(const QString& path, const QString& problem, bool cancelled);

private:
    class Work;
    void start(NumberWriter numbers, const QString& path);
    std::unique_ptr<Work> work_; // the running export; null: none
    quint64 started_ = 0;
};

} // namespace kvscope::ui
