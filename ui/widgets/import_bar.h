// Imports under way, in the status line: one after the other on a worker, with progress and a way to stop.
#pragma once

#include <QStringList>
#include <QWidget>

#include <atomic>
#include <stop_token>
#include <thread>

class QLabel;
class QProgressBar;
class QToolButton;

namespace kvscope::ui {

class ImportBar final : public QWidget {
    Q_OBJECT
public:
    explicit ImportBar(QWidget* parent = nullptr);
    ~ImportBar() override; // stops what is under way

    /// Whether the file is of another tool and has to be converted first; looks at its head only.
    static bool isNeededFor(const QString& path);
    void add(const QString& path);
    bool isBusy() const { return !current_.isEmpty(); }
    /// Stops the import under way and forgets those that wait.
    void cancel();

signals:
    void imported(const QString& path); // it opens like a trace now
    void failed(const QString& path, const QString& sentence);
    void cancelled(const QString& path);

private:
    void startNext();
    void finish(const QString& sentence, bool wasCancelled);

    QLabel* what_;
    QProgressBar* bar_;
    QToolButton* stop_;
    QStringList waiting_;
    QString current_; // empty: none
    std::jthread worker_;
};

} // namespace kvscope::ui
