// Names of files that may be compressed.
#pragma once

#include <QString>

namespace kvscope::ui {

/// Without the .gz that says how a file is packed, not what it is.
inline QString unpackedName(const QString& path) {
    return path.endsWith(QLatin1String(".gz")) ? path.chopped(3) : path;
}

} // namespace kvscope::ui
