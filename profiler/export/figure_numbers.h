// The numbers behind figures of the papers, as tables: working sets of SparseServe, changes and active sets of LoSA.
#pragma once

#include "profiler/export/export.h"
#include "profiler/export/line_writer.h"

#include <string>

namespace kvscope {

/// table: WindowOverlap, with the columns run_id, window, overlap, working_set, held_by_pool (see
/// read/window_overlap.h); TokenChanges: run_id, layer, rank, share, cumulated, of ranks from 1 on,
/// and the same of keys and values where they were recorded (read/token_changes.h); or ActiveSets: run_id, active,
/// rows, pages, density (read/active_sets.h). The note says why there are no rows. @throws as exportTable
ExportResult exportFigureNumbers(const std::string& path, ExportTable table, ExportFormat format, LineWriter& writer,
                                 const ExportOptions& options);

} // namespace kvscope
