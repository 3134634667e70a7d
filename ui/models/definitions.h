// The definitions of profiler/read for the desktop: help overlay, inspector, reports.
#pragma once

#include "profiler/read/definitions.h"

#include <QString>

namespace kvscope::ui {

using kvscope::Definition;
using kvscope::definitions;

/// Null when there is no such id.
inline const Definition* findDefinition(const QString& id) {
    for (const Definition& definition : definitions())
        if (id == QLatin1String(definition.id)) return &definition;
    return nullptr;
}

} // namespace kvscope::ui
