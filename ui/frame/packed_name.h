// Names of files that may be compressed.
#pragma once

#include "profiler/export/output_file.h"

#include <QString>

namespace kvscope::ui {

/// Without the .gz that says how a file is packed, not what it is.
inline QString unpackedName(const QString& path) {
    return OutputFile::isPacked(path.toStdString()) ? path.chopped(3) : path;
}

} // namespace kvscope::ui
