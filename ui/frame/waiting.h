// The text that a view shows while its run has no steps: that the view waits, or that no steps will come.
#pragma once

#include "ui/frame/run_names.h"

#include <QCoreApplication>

namespace kvscope::ui {

struct WaitingText {
    QString title, text;
};

/// `title` and `text` while the run is recorded. If the run has ended, a text that says that no decode step was
/// recorded.
inline WaitingText waitingText(const OpenRun* run, const QString& title, const QString& text) {
    if (!run || isGrowing(*run)) return {title, text};
    if (run->row.serves())
        return {QCoreApplication::translate("Waiting", "This run served requests"),
                QCoreApplication::translate("Waiting", "Its requests and iterations are recorded, not its steps: the "
                                                       "view Serving shows them.")};
    return {QCoreApplication::translate("Waiting", "No decode step was recorded"),
            QCoreApplication::translate("Waiting",
                                        "This run ended before its first one. Run it again, or look at another "
                                        "run.")};
}

} // namespace kvscope::ui
