// Notes of the heatmaps about a picture whose tiles have not all come.
#pragma once

#include "ui/frame/units.h"

#include <QCoreApplication>

namespace kvscope::ui {

/// The note in the line below the plot. stride: the preview has one step in so many.
inline QString previewNote(int stride) {
    return QCoreApplication::translate("Views", "Where steps are not read yet, 1 in %1 stands for its neighbours.")
        .arg(formatCount(stride));
}

/// The note in the tooltip of a cell.
inline QString notReadYet(int stride) {
    return QCoreApplication::translate("Views", "Not read yet: so far the picture shows 1 step in %1.")
        .arg(formatCount(stride));
}

} // namespace kvscope::ui
