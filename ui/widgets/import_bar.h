// Imports files of other tools and shows the import that runs in the status line, with its progress and a button to
// stop it. The imports run one after the other on a worker thread.
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
    ~ImportBar() override; // stops the running import and waits for its thread

    /// Whether the file is of another tool and must be imported before it can be opened. Reads only the beginning of
    /// the file.
    static bool isNeededFor(const QString& path);
    void add(const QString& path);
    bool isBusy() const { return !current_.isEmpty(); }
    /// Stops the running import and forgets the files that wait.
    void cancel();

signals:
    /// The file can now be opened like a trace.
    void imported(const QString& path);
    void failed(const QString& path, const QString& sentence);
    void cancelled(const QString& path);

private:
    void startNext();
    void finish(const QString& sentence, bool wasCancelled);

    QLabel* what_;
    QProgressBar* bar_;
    QToolButton* stop_;
    QStringList waiting_;
    QString current_; // the file being imported; empty: none
    std::jthread worker_;
};

} // namespace kvscope::ui
