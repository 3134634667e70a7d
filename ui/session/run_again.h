// A recorded run as a session to be run again: model, prompt, method and settings as its trace says.
#pragma once

#include "profiler/run/recorded_settings.h"
#include "ui/frame/workspace.h"
#include "ui/session/session_controller.h"

#include <QStringList>

namespace kvscope::ui {

struct SessionToRepeat {
    RunKey key;
    SessionRequest request; // its prompt is PromptSource::Kind::Recorded
    RecordedSettings settings;
    QStringList remarks; // what the session form does not repeat; whole sentences
};

/// The session that a run was recorded with. @throws Error(BadInput) where it cannot be run again: another tool or
/// engine recorded it, its method, a setting or its policy is not known here, or the trace does not say where the model
/// lies
SessionToRepeat sessionToRepeat(const RunKey& key, const RunRow& row);
/// A sentence while the row of a run was not read, as in the moment in which a short session ends; empty: it was.
QString whyUnread(const OpenRun& run);
/// Why this run cannot be run again; empty: it can, as far as its row tells.
QString whyNotAgain(const OpenRun& run);
/// Checks by fingerprint and shape that this is the model with which the run was recorded. @throws Error(BadInput)
void requireRecordedModel(const SessionToRepeat& recorded, const Model& model);

} // namespace kvscope::ui
