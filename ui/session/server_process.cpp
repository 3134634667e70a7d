#include "ui/session/server_process.h"

#include "base/error.h"
#include "ui/session/session_controller.h"

#include <QCoreApplication>
#include <QDir>
#include <QFile>
#include <QFileInfo>

#include <csignal>

#include <sys/prctl.h>
#include <unistd.h>

namespace kvscope::ui {
namespace {

constexpr QLatin1String kPrefixOfServer("kvscope-cli: ");

QString mebibytes(int amount) { return QString::number(amount) + QLatin1Char('M'); }

/// Removes a trace in which no run was begun, with the files that SQLite has put beside it.
void removeTrace(const QString& path) {
    for (const char* suffix : {"", "-wal", "-shm"}) QFile::remove(path + QLatin1String(suffix));
}

} // namespace

QStringList serverArguments(const ServerRequest& request) {
    QStringList all{QStringLiteral("serve"), QStringLiteral("--model"), request.model, QStringLiteral("--method"),
                    QString::fromStdString(request.method)};
    const auto add = [&](const char* option, const QString& value) { all << QLatin1String(option) << value; };
    for (const auto& [key, value] : request.settings) add("--set", QString::fromStdString(key + "=" + value));
    for (const auto& [key, value] : request.knobs) add("--knob", QString::fromStdString(key + "=" + value));
    add("--backend", QLatin1String(nameOf(request.backend)));
    if (request.threads > 0) add("--threads", QString::number(request.threads));
    add("--device-kv", mebibytes(request.deviceMiB));
    add("--host-kv", mebibytes(request.hostMiB));
    add("--scratch", mebibytes(request.scratchMiB));
    add("--host", request.host);
    add("--port", QString::number(request.port));
    if (!request.keyFile.isEmpty()) add("--api-key-file", request.keyFile);
    if (!request.trace.isEmpty()) {
        add("--trace", request.trace);
        all << QStringLiteral("--overwrite"); // the file was made, empty, to have a name of its own
        add("--record", request.record);
        if (!request.name.isEmpty()) add("--name", request.name);
        if (!request.recordModelPath) all << QStringLiteral("--no-model-path");
    }
    return all;
}

bool isLoopbackAddress(const QString& host) {
    if (host.compare(QLatin1String("localhost"), Qt::CaseInsensitive) == 0 || host == QLatin1String("::1")) return true;
    const QStringList parts = host.split(QLatin1Char('.'));
    if (parts.size() != 4 || parts.front() != QLatin1String("127")) return false;
    for (const QString& part : parts) {
        bool isNumber = false;
        if (part.toUInt(&isNumber) > 255 || !isNumber) return false;
    }
    return true;
}

ServerProcess::ServerProcess(QObject* parent) : QObject(parent) {
    process_.setProcessChannelMode(QProcess::MergedChannels);
    // The kernel ends the server when the desktop is gone, whatever has ended the desktop.
    process_.setChildProcessModifier([parentId = getpid()] {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parentId) _exit(1); // the desktop was gone before the line above
    });
    connect(&process_, &QProcess::readyReadStandardOutput, this, &ServerProcess::read);
    connect(&process_, &QProcess::finished, this, &ServerProcess::finished);
    connect(&process_, &QProcess::errorOccurred, this, [this](QProcess::ProcessError error) {
        if (error != QProcess::FailedToStart) return; // after all other errors finished() is emitted
        if (madeTrace_) removeTrace(request_.trace);
        enter(State::Failed, tr("%1 could not be started: %2").arg(program_, process_.errorString()));
    });
}

ServerProcess::~ServerProcess() {
    blockSignals(true);
    stopAndWait();
    process_.disconnect(this);
}

QString ServerProcess::usualProgram() {
    return QDir(QCoreApplication::applicationDirPath()).filePath(QStringLiteral("kvscope-cli"));
}

QString ServerProcess::curlLine() const {
    if (address_.isEmpty()) return {};
    QString place = address_; // a server that listens everywhere is called by a name that it answers to
    place.replace(QLatin1String("//0.0.0.0:"), QLatin1String("//127.0.0.1:"));
    place.replace(QLatin1String("//[::]:"), QLatin1String("//[::1]:"));
    const QString key = request_.keyFile.isEmpty() ? QString() : QStringLiteral(" -H 'Authorization: Bearer YOUR_KEY'");
    return QStringLiteral("curl %1/v1/completions%2 -d '{\"prompt\": \"Once upon a time\", \"max_tokens\": 32}'")
        .arg(place, key);
}

void ServerProcess::enter(State state, const QString& sentence) {
    state_ = state, sentence_ = sentence;
    emit changed();
}

void ServerProcess::start(const ServerRequest& request) {
    if (isRunning()) return;
    request_ = request;
    address_.clear(), problem_.clear(), rest_.clear();
    wasReady_ = recorded_ = killed_ = madeTrace_ = false;
    if (request_.trace.isEmpty()) {
        try {
            request_.trace = SessionController::newTrace("serve-" + request_.method);
            madeTrace_ = true;
        } catch (const Error& error) {
            return enter(State::Failed, QString::fromStdString(oneLine(error)));
        }
    }
    const QStringList arguments = serverArguments(request_);
    QStringList quoted;
    for (const QString& argument : arguments)
        quoted << (argument.contains(QLatin1Char(' ')) ? QStringLiteral("'%1'").arg(argument) : argument);
    state_ = State::Loading, sentence_ = tr("The server starts.");
    emit logged(QStringLiteral("$ kvscope-cli ") + quoted.join(QLatin1Char(' ')));
    process_.start(program_, arguments, QIODevice::ReadOnly);
    emit changed(); // a server that could not be started has said so already
}

void ServerProcess::stop() {
    if (!isRunning()) return;
    process_.terminate();
    const bool again = state_ == State::Stopping;
    enter(State::Stopping, again ? tr("The server cancels the requests that still run.")
                                 : tr("The server admits nothing more; requests that run have 30 s to end."));
}

void ServerProcess::stopAndWait() {
    if (!isRunning()) return;
    process_.waitForStarted(2000);
    // The first signal lets requests end, the second one cancels them.
    for (const int patienceMs : {500, 5000}) {
        process_.terminate();
        if (!isRunning() || process_.waitForFinished(patienceMs)) return;
    }
    killed_ = true;
    process_.kill();
    process_.waitForFinished(2000);
}

void ServerProcess::read() {
    rest_ += process_.readAllStandardOutput();
    for (qsizetype end = rest_.indexOf('\n'); end >= 0; end = rest_.indexOf('\n')) {
        const QString line = QString::fromUtf8(rest_.left(end)).trimmed();
        rest_.remove(0, end + 1);
        if (!line.isEmpty()) take(line);
    }
}

void ServerProcess::take(const QString& line) {
    emit logged(line);
    const QString listening = QStringLiteral("listening on "), isReady = QStringLiteral("ready: ");
    if (line.startsWith(listening)) {
        address_ = line.mid(listening.size());
        enter(State::Loading, tr("The model is loaded, and then the server measures what its iterations cost."));
    } else if (line.startsWith(isReady)) {
        wasReady_ = true;
        if (state_ == State::Loading) enter(State::Ready, tr("Serves %1.").arg(line.mid(isReady.size())));
        emit ready();
    } else if (line.startsWith(QString(kPrefixOfServer) + QLatin1String("stopping"))) {
        if (state_ != State::Stopping) // somebody else has asked for it
            enter(State::Stopping, tr("The server was asked to stop; requests that run have 30 s to end."));
    } else if (line.startsWith(QLatin1String("recorded in "))) {
        recorded_ = true;
    } else {
        problem_ = line.startsWith(kPrefixOfServer) ? line.mid(kPrefixOfServer.size()) : line;
    }
}

/// Says what became of the trace of a server that has ended.
QString ServerProcess::fateOfTrace() const {
    const QFileInfo file(request_.trace);
    if (!wasReady_) return tr("Nothing was recorded.");
    if (!file.exists()) return tr("Its trace %1 is gone.").arg(QDir::toNativeSeparators(request_.trace));
    return recorded_ ? tr("Its trace is %1.").arg(QDir::toNativeSeparators(request_.trace))
                     : tr("What was recorded until then is in %1; the run in it has no end.")
                           .arg(QDir::toNativeSeparators(request_.trace));
}

void ServerProcess::finished(int code, QProcess::ExitStatus status) {
    read();
    if (!rest_.trimmed().isEmpty()) take(QString::fromUtf8(rest_).trimmed());
    rest_.clear();
    if (!wasReady_ && madeTrace_) removeTrace(request_.trace);
    address_.clear();
    const bool asked = state_ == State::Stopping || killed_;
    if (status == QProcess::CrashExit)
        return enter(asked ? State::Ended : State::Failed,
                     (killed_ ? tr("The server did not end by itself and was killed. ")
                              : tr("The server ended unexpectedly. ")) +
                         fateOfTrace());
    if (code == 0) return enter(State::Ended, tr("The server has ended. ") + fateOfTrace());
    QString why = problem_.isEmpty() ? tr("the server ended with the status %1").arg(code) : problem_;
    if (!why.endsWith(QLatin1Char('.'))) why += QLatin1Char('.');
    enter(State::Failed, why + QLatin1Char(' ') + fateOfTrace());
}

} // namespace kvscope::ui
