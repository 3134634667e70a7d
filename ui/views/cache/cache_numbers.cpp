#include "ui/views/cache/cache_numbers.h"

#include "ui/frame/step_words.h"

#include <QCoreApplication>

#include <cmath>
#include <limits>

namespace kvscope::ui {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
QString tr(const char* text) { return QCoreApplication::translate("CacheView", text); }
double orNan(const std::optional<std::int64_t>& value) { return value ? double(*value) : kNan; }

/// Which steps a rate counts, in the words of its explanation.
QString ratesCount(const RunRow& run, int cold) {
    if (cold == 0) return tr("every step");
    if (coldSteps() == ColdSteps::Counted) return tr("every step, cold ones too");
    if (run.prompts.inPieces()) return tr("every step but %1").arg(leftOutSteps(run, cold));
    return cold == 1 ? tr("every step but 1 cold one, in which the cache is empty")
                     : tr("every step but %1 cold ones, in which the cache is empty").arg(cold);
}

} // namespace

std::vector<CacheNumber> cacheNumbers(const WhatIf& whatIf, const WhatIfAnswer& answer) {
    const SelectionTrace& trace = whatIf.trace();
    const ReplayConfig& config = answer.config;
    const MissCauses was = whatIf.recordedCauses();
    const bool cache = trace.run.deviceSlots > 0;
    const RateSums recorded = whatIf.recordedRates();
    const QString rated = ratesCount(trace.run, whatIf.coldStepCount());
    std::vector<CacheNumber> numbers;
    const auto add = [&](const QString& title, const QString& help, Unit unit, const QString& unitName, int better,
                         double a, double b, bool estimated) {
        numbers.push_back({{title, help, unitName, unit, a, b, better}, estimated});
    };
    const QString none;
    const Knowledge knows = trace.run.knows;
    const auto known = [&](Known what, double value) { return knows.has(what) ? value : kNan; };
    const bool misses = answer.missesEstimated, times = answer.estimated, causes = misses || !whatIf.exactCurves();
    add(tr("Block slots"),
        trace.shared ? tr("Slots of the pool that all sequences share, per layer and KV head")
                     : tr("Slots per sequence, layer and KV head"),
        Unit::Count, none, 0,
        cache ? double(trace.run.deviceSlots) * (trace.shared ? std::max(trace.run.sequences, 1) : 1) : kNan,
        config.cacheBlocks, false);
    add(tr("Hit rate"), tr("Selected blocks that were resident when selected, of all selected blocks of %1").arg(rated),
        Unit::Percent, QStringLiteral("%"), 1, known(Known::Hits, 100 * recorded.hitRate()), 100 * answer.hitRate(),
        misses);
    add(tr("Misses"), tr("Selected blocks that had to be loaded, all decode steps"), Unit::Count, none, -1,
        known(Known::Hits, double(trace.misses)), double(config.misses), misses);
    add(tr("  compulsory"), tr("First use of a block by a head: no cache of any size avoids them"), Unit::Count, none,
        0, known(Known::Hits, double(was.compulsory)), double(answer.causes.compulsory), false);
    add(tr("  capacity"),
        tr("What even Belady's choice misses at this size, which knows the future, without the compulsory ones: only "
           "more slots avoid them"),
        Unit::Count, none, -1, known(Known::Hits, orNan(was.capacity)), orNan(answer.causes.capacity), causes);
    add(tr("  policy"), tr("What this policy misses beyond Belady's choice at the same size"), Unit::Count, none, -1,
        known(Known::Hits, orNan(was.policy)), orNan(answer.causes.policy), causes);
    add(tr("Host to device"), tr("Bytes loaded in all decode steps; loading ahead in vain counts"), Unit::Bytes,
        QStringLiteral("bytes"), -1, known(Known::Bytes, double(trace.h2dBytes)), double(answer.bytes()), times);
    const bool measured = trace.run.timing == Timing::Measured;
    add(tr("Compute"), tr("Measured time of all decode steps without transfers; the same for every cache and link"),
        Unit::Nanoseconds, QStringLiteral("ns"), -1, whatIf.computeNs(), config.computeNs, false);
    add(measured ? tr("Exposed transfer") : tr("Exposed transfer (modelled)"),
        measured ? tr("Link time that attention waits for, all decode steps. Recorded: measured. Asked: modelled")
                 : tr("Link time that attention waits for, all decode steps; modelled in both columns"),
        Unit::Nanoseconds, QStringLiteral("ns"), -1, known(Known::ExposedTimes, double(trace.exposedNs)),
        double(answer.exposedNs()), times);
    // Where the link is modelled no recorded step waited for it: the run itself was faster than this number.
    const double alone = recorded.computeNs > 0 ? recorded.tokens * 1e9 / recorded.computeNs : kNan;
    add(measured ? tr("Tokens/s") : tr("Tokens/s (modelled link)"),
        measured
            ? tr("Decoded tokens of %1, per second of compute and exposed transfer. Recorded: measured. Asked: a "
                 "prediction")
                  .arg(rated)
            : tr("Decoded tokens of %1, per second of measured compute and modelled exposed transfer. Without the "
                 "link's time, which no recorded step waited for, the run measured %2 tokens/s. Asked: a prediction")
                  .arg(rated, formatValue(Unit::Fraction, alone)),
        Unit::Count, none, 1, recorded.tokensPerSecond(), answer.tokensPerSecond(), times);
    return numbers;
}

QString questionText(const WhatIfQuestion& question) {
    QString text =
        tr("%1, %2 slots, %3 GB/s, %4 µs")
            .arg(QString::fromStdString(question.policy), formatCount(question.size),
                 formatValue(Unit::Fraction, question.gbps), formatValue(Unit::Fraction, question.latencyUs));
    if (question.layersAhead > 0)
        text += tr(", loading %1 layers ahead, %2 % right")
                    .arg(question.layersAhead)
                    .arg(formatValue(Unit::Fraction, 100 * question.accuracy));
    return text;
}

QString shortDifference(const KeyNumber& number) {
    const double change = number.b - number.a;
    if (std::isnan(change)) return QStringLiteral("–");
    if (number.text(number.a) == number.text(number.b)) return QStringLiteral("="); // as far as it is shown
    const QString sign = change > 0 ? QStringLiteral("+") : QStringLiteral("−");
    if (number.unit == Unit::Percent) return sign + tr("%1 points").arg(std::abs(change), 0, 'f', 1);
    if (number.a == 0) return sign + number.text(std::abs(change));
    const double share = std::abs(100 * change / number.a);
    if (share >= 1000) return QStringLiteral("× %1").arg(formatValue(Unit::Fraction, number.b / number.a));
    return sign + QStringLiteral("%1 %").arg(share, 0, 'f', share < 10 ? 1 : 0);
}

} // namespace kvscope::ui
