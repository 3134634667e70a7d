#include "ui/frame/step_words.h"

#include "ui/frame/units.h"

#include <QCoreApplication>

namespace kvscope::ui {

QString leftOutSteps(const RunRow& run, std::int64_t count) {
    const auto tr = [](const char* text) { return QCoreApplication::translate("StepWords", text); };
    if (!run.prompts.inPieces()) return count == 1 ? tr("1 cold step") : tr("%1 cold steps").arg(formatCount(count));
    return count == 1 ? tr("1 cold or mixed step") : tr("%1 cold or mixed steps").arg(formatCount(count));
}

} // namespace kvscope::ui
