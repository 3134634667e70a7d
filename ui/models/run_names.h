// How runs are told apart wherever several stand beside each other: a letter and a colour by their place in the
// comparison, and a name that no other open run has.
#pragma once

#include "ui/workspace.h"

#include <QColor>
#include <QString>

#include <cstddef>
#include <optional>
#include <vector>

namespace kvscope::ui {

/// "A", "B", ... of the run at this place of Workspace::sides().
QString runLetter(std::size_t place);
/// The same colour for the same letter in every view of a theme.
QColor runColour(std::size_t place);
/// Place in the comparison; none: it takes no part.
std::optional<std::size_t> placeOf(const Workspace& workspace, const RunKey& key);

/// The run's own name, or its file's where it has none. Where other open runs have the same name, what it was set to
/// otherwise follows ("needle · k_q 4"); where nothing differs, when it was recorded, and at last its file.
QString runName(const OpenRun& run, const std::vector<OpenRun>& open);
/// "k_q 4, total_blocks 16": all that its method was set to; empty: nothing, or not recorded.
QString settingsText(const RunRow& row);
/// "B: needle · k_q 4", for legends, headers and tooltips.
QString letteredName(std::size_t place, const Workspace& workspace);

/// It is being recorded, by this program or another one that is still there.
bool isGrowing(const OpenRun& run);

} // namespace kvscope::ui
