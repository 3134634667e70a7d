// Makes the definitions of profiler/read available to the help overlay, the inspector and the reports of the desktop.
#pragma once

#include "profiler/read/definitions.h"

#include <QString>

namespace kvscope::ui {

using kvscope::Definition;
using kvscope::definitions;

/// The definition with this id; null if there is none.
inline const Definition* findDefinition(const QString& id) {
    for (const Definition& definition : definitions())
        if (id == QLatin1String(definition.id)) return &definition;
    return nullptr;
}

} // namespace kvscope::ui
