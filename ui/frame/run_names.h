// Tells runs apart wherever several are shown: each run of a comparison has a letter and a colour by its place, and
// each open run has a name of its own.
#pragma once

#include "ui/frame/workspace.h"

#include <QColor>
#include <QString>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace kvscope::ui {

/// The letter "A", "B", ... of the run at this place of Workspace::sides().
QString runLetter(std::size_t place);
/// The colour of the run at this place, the same in all views of a theme.
QColor runColour(std::size_t place);
/// A colour that a run keeps, whatever is compared and however often it is opened: where it does not come from its
/// place in the comparison. Runs that follow each other in one trace have different ones.
QColor lastingColour(const RunKey& key);
/// The run's place in the comparison; absent if the run is not compared.
std::optional<std::size_t> placeOf(const Workspace& workspace, const RunKey& key);

/// The run's own name, or the name of its file if it has none. If other open runs have the same name, the settings that
/// differ follow: "needle · 12 total blocks". If no setting differs from one of them, the time of recording follows,
/// and if that is equal too, the file and the number of the run.
QString runName(const OpenRun& run, const std::vector<OpenRun>& open);
/// A setting in words: "12 total blocks", "temperature 0.7".
QString settingText(const std::string& key, const std::string& value);
/// All settings of the run's method, as "4 select blocks, 16 total blocks"; empty if it has none or they were not
/// recorded.
QString settingsText(const RunRow& row);
/// The run's letter and name for legends, headers and tooltips: "B: needle · 12 total blocks".
QString letteredName(std::size_t place, const Workspace& workspace);

/// Whether the run is being recorded, by this program or by another one that is still alive.
bool isGrowing(const OpenRun& run);

} // namespace kvscope::ui
