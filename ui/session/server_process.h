// A server that the desktop starts: `kvscope-cli serve` as a child process, which records a trace while it answers. The
// desktop opens that trace like any other one that another program writes.
#pragma once

#include "core/plan/backend.h"

#include <QObject>
#include <QProcess>
#include <QString>
#include <QStringList>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::ui {

struct ServerRequest {
    using Settings = std::vector<std::pair<std::string, std::string>>;
    QString model; // name of an embedded model, or a path
    std::string method;
    Settings settings, knobs; // key and value of what differs from the defaults
    Backend backend = Backend::Cpu;
    int threads = 0;                                         // of the CPU backend; 0: all cores
    int deviceMiB = 256, hostMiB = 4096, scratchMiB = 512;   // budgets, as serve has them by default
    QString host = QStringLiteral("127.0.0.1"), keyFile;     // keyFile: empty: clients need no key
    int port = 8000;                                         // 0: one that is free
    QString record = QStringLiteral("serving"), trace, name; // trace: empty: a new file in the folder of traces
    bool recordModelPath = true;
};

/// The arguments of kvscope-cli that start this server.
QStringList serverArguments(const ServerRequest& request);

/// Whether a server that listens there can be reached by this machine alone.
bool isLoopbackAddress(const QString& host);

/// Lives on the GUI thread. States: Off -> Loading -> Ready -> Stopping -> Ended, or Failed from any of them. A process
/// that has ended can be started again.
class ServerProcess final : public QObject {
    Q_OBJECT
public:
    enum class State : std::uint8_t { Off, Loading, Ready, Stopping, Ended, Failed };

    explicit ServerProcess(QObject* parent = nullptr);
    ~ServerProcess() override; // as stopAndWait

    /// kvscope-cli beside the program that runs, which is where it is built and installed.
    static QString usualProgram();
    void setProgram(const QString& path) { program_ = path; }
    QString program() const { return program_; }

    State state() const { return state_; }
    bool isRunning() const { return process_.state() != QProcess::NotRunning; }
    qint64 processId() const { return process_.processId(); }
    QString address() const { return address_; } // "http://127.0.0.1:8000"; empty: it does not listen yet
    /// A command line that asks the server for a completion; empty until it listens.
    QString curlLine() const;
    /// Details of the state, e.g. the sentence with which the server has failed.
    QString sentence() const { return sentence_; }
    QString trace() const { return request_.trace; }

    /// Does nothing while a server runs. Where there can be no trace, the state becomes Failed at once.
    void start(const ServerRequest& request);
    /// Asks the server to stop: requests that run may end within its 30 s. A second call cancels them.
    void stop();
    /// Stops the server without patience for requests, and waits some seconds until it has ended; a server that has not
    /// ended by then is killed.
    void stopAndWait();

signals:
    void changed(); // the state, the address or the sentence
    void logged(const QString& line);
    void ready(); // the server answers; its run is in the trace within a moment

private:
    void read();
    void take(const QString& line);
    void finished(int code, QProcess::ExitStatus status);
    void enter(State state, const QString& sentence);
    QString fateOfTrace() const;

    QProcess process_;
    QString program_ = usualProgram();
    ServerRequest request_;
    State state_ = State::Off;
    QString address_, sentence_, problem_; // problem_: the server's last sentence about what went wrong
    QByteArray rest_;                      // of a line that is not complete
    bool wasReady_ = false, recorded_ = false, killed_ = false, madeTrace_ = false;
};

} // namespace kvscope::ui
