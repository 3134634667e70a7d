// What a view without steps says: that it waits, or that nothing will come any more.
#pragma once

#include "ui/frame/run_names.h"

#include <QCoreApplication>

namespace kvscope::ui {

struct WaitingText {
    QString title, text;
};

/// `title` and `text` while the run is recorded; of a run that ended, that it has nothing of the kind.
inline WaitingText waitingText(const OpenRun* run, const QString& title, const QString& text) {
    if (!run || isGrowing(*run)) return {title, text};
    return {QCoreApplication::translate("Waiting", "No decode step was recorded"),
            QCoreApplication::translate("Waiting",
                                        "This run ended before its first one. Run it again, or look at another "
                                        "run.")};
}

} // namespace kvscope::ui
