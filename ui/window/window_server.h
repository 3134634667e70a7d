// The server that a window starts: its process, its button in the status line, and the trace that it records.
#pragma once

#include "ui/session/server_process.h"

#include <QObject>
#include <QString>

class QToolButton;
class QWidget;

namespace kvscope::ui {

class StatusLine;

class WindowServer final : public QObject {
    Q_OBJECT
public:
    WindowServer(StatusLine& status, QWidget* window);

    /// Made, with its button, when it is first asked for.
    ServerProcess& process();
    /// The program that serves; empty: the usual one.
    void setProgram(const QString& program);
    const QString& program() const { return program_; }
    /// @return whether the window may close: no server runs, or the user wants it to stop then
    bool askToStop();
    /// Stops the server if one runs. Its trace is not looked for any more.
    void stopAndWait();

signals:
    void clicked(); // the button in the status line
    /// The run of the server is in its trace, which grows.
    void recording(const QString& trace);

private:
    void follow();
    void lookInto(const QString& trace, int looks);

    StatusLine& status_;
    QWidget* window_;
    ServerProcess* process_ = nullptr; // null: no server was started yet
    QToolButton* button_ = nullptr;    // says that a server runs
    QString program_;
    bool looks_ = true;
};

} // namespace kvscope::ui
