#include "ui/views/run_text.h"

#include "profiler/read/denoising.h"
#include "ui/frame/units.h"

#include <QCoreApplication>
#include <QStringList>

#include <cmath>

namespace kvscope::ui {

namespace {
QString tr(const char* text) { return QCoreApplication::translate("Views", text); }
} // namespace

QString stepName(const RunRow& run, int step) {
    switch (run.prompts.reads(step)) {
    case StepReads::Prompt:
        return tr("prefill (step %1)").arg(formatCount(step));
    case StepReads::Mixed:
        return tr("step %1 (reads prompts, decodes)").arg(formatCount(step));
    case StepReads::Decode:
        break;
    }
    return tr("decode step %1").arg(formatCount(step));
}

QString stepTitle(const RunRow& run) {
    if (run.serves()) return tr("Step (iteration of the server)");
    if (run.prompts.inPieces()) return tr("Step (some read prompts)");
    return denoisesCanvas(run) ? tr("Step") : tr("Step (0 is the prefill)"); // a canvas has no prefill
}

QString timingWord(const RunRow& run) { return run.timing == Timing::Measured ? tr("measured") : tr("modelled"); }

QString aggregationNote(double stepsPerPixel, const QString& how) {
    if (stepsPerPixel <= 1.0 + 1e-9) return {};
    const QString count =
        stepsPerPixel < 10 ? QString::number(stepsPerPixel, 'f', 1) : formatCount(std::llround(stepsPerPixel));
    return tr("1 pixel = %1 steps, %2.").arg(count, how);
}

QString loadingNote(bool loading, int loaded, int total) {
    if (!loading || loaded >= total) return {};
    return tr("Loading: %1 of %2 steps.").arg(formatCount(loaded), formatCount(total));
}

QString blockTextHtml(const std::string& text, int limit) {
    const QString all = QString::fromStdString(text);
    QString shown;
    int taken = 0;
    for (qsizetype i = 0; i < all.size() && taken < limit; ++i, ++taken) {
        const QChar c = all[i];
        if (c == QLatin1Char('\n'))
            shown += QStringLiteral("⏎ ");
        else if (c == QLatin1Char('\t'))
            shown += QStringLiteral("⇥ ");
        else if (c.category() == QChar::Other_Control)
            shown += QChar(0x00B7);
        else if (c.isHighSurrogate() && i + 1 < all.size()) {
            shown += c;
            shown += all[++i];
        } else
            shown += c;
    }
    if (taken >= limit && all.size() > limit) shown += QStringLiteral("…");
    return shown.toHtmlEscaped();
}

QString sentences(std::initializer_list<QString> parts) {
    QStringList kept;
    for (const QString& part : parts)
        if (!part.isEmpty()) kept << part;
    return kept.join(QLatin1Char(' '));
}

} // namespace kvscope::ui
