#include "ui/views/key_numbers.h"

#include "profiler/read/run_numbers.h"

#include <QCoreApplication>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvscope::ui {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
QString tr(const char* text) { return QCoreApplication::translate("CompareView", text); }

/// "+8.3 %", "−20 %"
QString changeText(double from, double to) {
    const double percent = 100 * (to - from) / from;
    return QStringLiteral("%1%2 %")
        .arg(percent > 0 ? QStringLiteral("+") : QStringLiteral("−"))
        .arg(std::abs(percent), 0, 'f', std::abs(percent) < 10 ? 1 : 0);
}

} // namespace

QString KeyNumber::text(double value) const {
    if (std::isnan(value)) return QStringLiteral("–");
    return formatValue(unit, value) +
           (unit == Unit::Count && !unitName.isEmpty() ? QLatin1Char(' ') + unitName : QString());
}

QString KeyNumber::signedText(double value) const {
    return (value > 0 ? QStringLiteral("+") : value < 0 ? QStringLiteral("−") : QString()) + text(std::abs(value));
}

QString KeyNumber::difference(bool withInterval) const {
    if (std::isnan(a) || std::isnan(b)) return QStringLiteral("–");
    const double change = b - a;
    if (change == 0) return tr("same");
    if (!std::isnan(low) && low <= 0 && high >= 0) {
        const bool narrow = std::max(-low, high) <= kTellable * std::abs(a);
        if (!withInterval) return narrow ? tr("no difference") : tr("cannot tell");
        return (narrow ? tr("no difference: %1 to %2") : tr("cannot tell: %1 to %2"))
            .arg(signedText(low), signedText(high));
    }
    QString result = signedText(change);
    if (unit == Unit::Percent && std::isnan(low)) return result.replace(QStringLiteral(" %"), tr(" points"));
    if (a != 0 && unit != Unit::Percent) result += QStringLiteral(" (%1)").arg(changeText(a, b));
    if (!std::isnan(low) && withInterval) result += tr(", from %1 to %2").arg(signedText(low), signedText(high));
    return result;
}

int KeyNumber::verdict() const {
    if (better == 0 || std::isnan(a) || std::isnan(b) || a == b) return 0;
    if (!std::isnan(low) && low <= 0 && high >= 0) return 0;
    if (std::isnan(low) && varies) return 0;
    if (std::isnan(low) && std::abs(b - a) < 0.01 * std::max(std::abs(a), std::abs(b)))
        return 0; // within what a second recording varies
    return (b > a) == (better > 0) ? 1 : -1;
}

std::vector<KeyNumber> keyNumbers(const RunSample& left, const RunSample& right) {
    const RunSummary &a = left.summary, &b = right.summary;
    const auto each = [&](auto&& value) { return std::pair<double, double>{value(a), value(b)}; };
    std::vector<KeyNumber> numbers;
    const auto add = [&](const QString& title, const QString& help, Unit unit, const QString& unitName, int better,
                         std::pair<double, double> values, bool varies = false) {
        numbers.push_back({title, help, unitName, unit, values.first, values.second, better, kNan, kNan, varies});
    };
    const auto word = [](const RunSummary& s) {
        return s.timing == Timing::Measured ? tr("measured") : tr("modelled");
    };
    const QString timing = a.timing == b.timing ? word(a) : tr("A %1, B %2").arg(word(a), word(b));
    using S = RunSummary;
    // Beside each rate stands which steps it counts.
    const QString counted =
        a.ratesCount() == b.ratesCount()
            ? QString::fromStdString(a.ratesCount())
            : tr("A: %1, B: %2").arg(QString::fromStdString(a.ratesCount()), QString::fromStdString(b.ratesCount()));
    add(tr("Tokens per second, whole run"),
        tr("Tokens fed by the decode steps, or by denoising forwards written, all sequences, per second of their "
           "measured wall time; the time between steps is not counted; %1")
            .arg(counted),
        Unit::Count, tr("tokens/s"), 1, each([](const S& s) { return s.tokensPerSecond; }), true);
    if (a.gapsMatter() || b.gapsMatter())
        add(tr("Tokens per second with the time between steps"),
            tr("The same tokens per second of the same steps and of all time between decode steps: pauses and other "
               "work count too; %1")
                .arg(counted),
            Unit::Count, tr("tokens/s"), 1, each([](const S& s) { return s.tokensPerSecondWithGaps; }), true);
    add(tr("Step time, mean of the whole run"),
        tr("Mean measured wall time of the decode steps, those that open a block included; %1").arg(counted),
        Unit::Nanoseconds, QStringLiteral("ns"), -1, each([](const S& s) { return s.stepMs * 1e6; }), true);
    add(tr("Locality, mean"),
        tr("Mean over steps, layers, sequences and KV heads of the share of blocks kept from the step before; without "
           "the "
           "first decode step and steps that open a block"),
        Unit::Fraction, QStringLiteral("fraction"), 0, // what it costs, misses and bytes say
        each([](const S& s) { return s.localityCount > 0 ? s.localityMean : kNan; }));
    add(tr("Locality, lowest"), tr("The smallest of those values: one step, layer, sequence and KV head"),
        Unit::Fraction, QStringLiteral("fraction"), 0,
        each([](const S& s) { return s.localityCount > 0 ? s.localityMin : kNan; }));
    add(tr("Hit rate"), tr("Selected blocks that were resident when selected, of all selected blocks; %1").arg(counted),
        Unit::Percent, QStringLiteral("%"), 1, each([](const S& s) { return 100 * s.hitRate; }));
    add(tr("Misses per step"), tr("Blocks fetched per decode step, all layers and heads; %1").arg(counted), Unit::Count,
        tr("blocks"), -1, each([](const S& s) { return s.missesPerStep; }));
    add(tr("Host to device per step"), tr("Bytes fetched per decode step; %1").arg(counted), Unit::Bytes,
        QStringLiteral("bytes"), -1, each([](const S& s) { return s.h2dBytesPerStep; }));
    add(tr("Exposed time per step (%1)").arg(timing),
        tr("Link time that a decode step has to wait for; %1").arg(counted), Unit::Nanoseconds, QStringLiteral("ns"),
        -1, each([](const S& s) { return s.exposedMsPerStep * 1e6; }),
        a.timing == Timing::Measured || b.timing == Timing::Measured);
    add(tr("Device memory for keys and values"),
        tr("Of the block slots of all layers, or, of full attention, of all tokens; without weights and index"),
        Unit::Bytes, QStringLiteral("bytes"), -1, {deviceKvBytes(left.run, a), deviceKvBytes(right.run, b)});
    add(tr("Prefill"), tr("Measured wall time in which the prompts were read"), Unit::Nanoseconds, QStringLiteral("ns"),
        -1, each([](const S& s) { return s.prefillMs > 0 ? s.prefillMs * 1e6 : kNan; }), true);
    add(tr("Decode steps"), tr("Decode steps in the trace"), Unit::Count, tr("steps"), 0,
        each([](const S& s) { return double(s.decodeSteps); }));
    return numbers;
}

QString factsText(const RunSample& a, const RunSample& b, const QString& letter) {
    QStringList sentences;
    const double ofA = h2dBytesPerToken(a.summary), ofB = h2dBytesPerToken(b.summary);
    const auto bytes = [](double value) { return formatValue(Unit::Bytes, value); };
    if (!std::isnan(ofA) && !std::isnan(ofB)) {
        if (ofA == 0 && ofB == 0)
            sentences << tr("Neither fetches blocks from the host.");
        else if (ofB == 0)
            sentences << tr("%1 fetches nothing from the host, A %2 per token.").arg(letter, bytes(ofA));
        else if (ofA == 0)
            sentences << tr("%1 fetches %2 per token from the host, A nothing.").arg(letter, bytes(ofB));
        else if (ofA == ofB)
            sentences << tr("Both fetch %1 per token from the host.").arg(bytes(ofA));
        else
            sentences << tr("%1 fetches %2 per token from the host, A %3 (%4).")
                             .arg(letter, bytes(ofB), bytes(ofA), changeText(ofA, ofB));
    }
    const QString saidA = QString::fromStdString(a.answer), saidB = QString::fromStdString(b.answer);
    if (!saidA.isEmpty() && saidA == saidB)
        sentences << tr("Both answer %1.").arg(saidA);
    else if (!saidA.isEmpty() && !saidB.isEmpty())
        sentences << tr("%1 answers %2; A %3.").arg(letter, saidB, saidA);
    else if (!saidB.isEmpty())
        sentences << tr("%1 answers %2.").arg(letter, saidB);
    else if (!saidA.isEmpty())
        sentences << tr("A answers %1.").arg(saidA);
    return sentences.join(QLatin1Char(' '));
}

std::vector<KeyNumber> componentNumbers(const Comparison& comparison) {
    std::vector<KeyNumber> numbers;
    const auto add = [&](const QString& title, const QString& help, const ComponentDelta& d) {
        numbers.push_back({title, help, QStringLiteral("ns"), Unit::Nanoseconds, d.aNs, d.bNs, -1, d.deltaNs.low,
                           d.deltaNs.high, true});
    };
    const QString compared = tr("mean over the %1 compared steps, with the %2 % confidence interval of the difference")
                                 .arg(formatCount(comparison.steps))
                                 .arg(100 * comparison.confidence);
    const Interval& ratio = comparison.ratio;
    numbers.push_back({tr("Step time against A's, median"),
                       tr("The verdict's number: the median, over the %1 compared steps, of the step's time over that "
                          "of A's same step; A is 100 %")
                           .arg(formatCount(comparison.steps)),
                       QStringLiteral("%"), Unit::Percent, 100, 100 * ratio.value, -1, 100 * (ratio.low - 1),
                       100 * (ratio.high - 1), true});
    add(tr("Step time, mean of compared steps"), tr("Wall time of a step: %1").arg(compared), comparison.step);
    for (const ComponentDelta& component : comparison.components)
        add(tr("%1, mean of compared steps").arg(QString::fromStdString(component.component)),
            tr("Time of this stage: %1").arg(compared), component);
    return numbers;
}

} // namespace kvscope::ui
