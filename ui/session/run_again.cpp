#include "ui/session/run_again.h"

#include "base/error.h"

#include <utility>

namespace kvscope::ui {

SessionToRepeat sessionToRepeat(const RunKey& key, const RunRow& row) {
    SessionToRepeat recorded;
    recorded.key = key;
    recorded.settings = recordedSettings(row);
    for (const std::string& remark : recorded.settings.remarks) recorded.remarks << QString::fromStdString(remark);
    SessionRequest& request = recorded.request;
    request.options = recorded.settings.options;
    if (const int threads = std::exchange(request.options.threads, 0); threads > 0)
        recorded.remarks << QObject::tr("It was recorded with %n threads; a session of the desktop uses all cores.",
                                        nullptr, threads);
    request.level = recorded.settings.level;
    request.model = QString::fromStdString(recorded.settings.model);
    PromptSource source;
    source.kind = PromptSource::Kind::Recorded;
    source.file = key.path;
    source.runId = key.runId;
    source.sequences = row.sequences;
    request.source = source;
    return recorded;
}

QString whyUnread(const OpenRun& run) {
    const bool unread = run.row.method.empty() && run.row.createdUtc.empty() && run.row.backend != RunBackend::Imported;
    return unread ? QObject::tr("This run is still being read.") : QString();
}

QString whyNotAgain(const OpenRun& run) {
    if (run.live) return QObject::tr("This run is still being recorded.");
    if (const QString unread = whyUnread(run); !unread.isEmpty()) return unread;
    try {
        sessionToRepeat(run.key, run.row);
        return {};
    } catch (const Error& error) {
        return QString::fromStdString(oneLine(error));
    }
}

void requireRecordedModel(const SessionToRepeat& recorded, const Model& model) {
    kvscope::requireRecordedModel(recorded.settings, model);
}

} // namespace kvscope::ui
