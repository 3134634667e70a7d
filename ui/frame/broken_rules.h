// Sentences for people about rows that break rules of the trace format.
#pragma once

#include "ui/frame/workspace.h"

#include <QString>

namespace kvscope::ui {

/// "12 rows break rules"; empty where none does, or nothing was tested yet.
QString brokenText(const Workspace& workspace, const RunKey& run);
/// How many rows break how many rules, and which numbers mean nothing then: two sentences; empty as brokenText is.
QString violationText(const Workspace& workspace, const RunKey& run);
/// Why a run's numbers are not shown: rows break rules of the format, or else `otherwise`, which says what the engine
/// that recorded it did not see.
QString whyUnknown(const Workspace& workspace, const RunKey& run, const QString& otherwise);

} // namespace kvscope::ui
