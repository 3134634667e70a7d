// Sentences for people about rows that break rules of the trace format.
#pragma once

#include "ui/frame/workspace.h"

#include <QString>

namespace kvscope::ui {

/// "12 rows break rules". Empty: no row does, or the run was not tested yet.
QString brokenText(const Workspace& workspace, const RunKey& run);
/// Two sentences: how many rows break how many rules, and which numbers of the run mean nothing because of that. Empty
/// where brokenText is empty.
QString violationText(const Workspace& workspace, const RunKey& run);
/// Why a run's numbers are not shown: rows break rules of the format, or else `otherwise`, which says what the engine
/// that recorded it did not see.
QString whyUnknown(const Workspace& workspace, const RunKey& run, const QString& otherwise);

} // namespace kvscope::ui
