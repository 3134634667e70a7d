// Handles the names of files that may be compressed.
#pragma once

#include "profiler/export/output_file.h"

#include <QString>

namespace kvscope::ui {

/// The path without a final .gz, which says how the file is packed and not what it contains.
inline QString unpackedName(const QString& path) {
    return OutputFile::isPacked(path.toStdString()) ? path.chopped(3) : path;
}

} // namespace kvscope::ui
