#include "ui/timeline/self_time_numbers.h"

#include "base/error.h"
#include "profiler/read/span_batch.h"
#include "ui/frame/units.h"
#include "ui/timeline/span_filter.h"

#include <QFile>
#include <QStringList>

#include <algorithm>

namespace kvscope::ui {

namespace {

constexpr int kRowsAtOnce = 100'000;
constexpr std::size_t kSpansAtOnce = 500'000;
constexpr double kReading = 0.7; // of all the work

QString quoted(const std::string& name, QChar separator) {
    QString text = QString::fromStdString(name);
    if (separator == QLatin1Char(',') && (text.contains(QLatin1Char(',')) || text.contains(QLatin1Char('"'))))
        text = QLatin1Char('"') + text.replace(QLatin1Char('"'), QStringLiteral("\"\"")) + QLatin1Char('"');
    return text;
}

void checkWanted(NumberSink& sink) {
    if (sink.interrupt() && *sink.interrupt()) throw Error(ErrorKind::Cancelled, "cancelled");
}

/// Every span that meets the range, each in its place: what encloses one of them meets it as well.
void readRange(TraceReader& reader, const TracePart& part, std::size_t memoryLimit, NumberSink& sink,
               SpanIndex& index) {
    const ExportRange& range = *part.range;
    SpanPosition at;
    for (bool atEnd = false; !atEnd;) {
        SpanBatch batch = readSpans(reader, part.runId, at, kRowsAtOnce);
        std::erase_if(batch.spans, [&](const SpanRow& span) {
            return span.startNs >= range.toNs || span.startNs + span.durationNs < range.fromNs;
        });
        index.append(batch);
        if (const std::size_t taken = index.memoryBytes(); taken > memoryLimit)
            throw Error(ErrorKind::OutOfMemory,
                        "the spans of this range take more than " +
                            formatValue(Unit::Bytes, double(memoryLimit)).toStdString() + " of memory",
                        "mark a shorter range, or add them up in SQL");
        at = batch.next;
        atEnd = batch.atEnd;
        sink.progress(kReading * batch.fraction);
    }
    while (index.settle(kSpansAtOnce, true)) checkWanted(sink);
}

} // namespace

QString selfTimesText(const std::vector<SelfTime>& rows, double rangeNs, QChar separator) {
    QString text = QStringList{QStringLiteral("name"),       QStringLiteral("track"),
                               QStringLiteral("self_ns"),    QStringLiteral("percent_of_range"),
                               QStringLiteral("spans"),      QStringLiteral("mean_ns"),
                               QStringLiteral("longest_ns"), QStringLiteral("total_ns")}
                       .join(separator) +
                   QLatin1Char('\n');
    for (const SelfTime& row : rows) {
        const double share = rangeNs > 0 ? double(row.selfNs) / rangeNs * 100 : 0;
        text +=
            QStringList{
                quoted(row.name, separator),    quoted(row.track, separator),
                QString::number(row.selfNs),    QString::number(share, 'f', 3),
                QString::number(row.spans),     QString::number(double(row.totalNs) / std::max(1u, row.spans), 'f', 0),
                QString::number(row.longestNs), QString::number(row.totalNs)}
                .join(separator) +
            QLatin1Char('\n');
    }
    return text;
}

NumberWriter selfTimesOf(const TracePart& part, SelfTimeBy by, const Filter& filter, std::size_t memoryLimit) {
    return [part, by, filter, memoryLimit](NumberSink& sink) {
        TraceReader reader(QFile::encodeName(part.path).toStdString());
        reader.setInterrupt(sink.interrupt());
        SpanIndex index;
        readRange(reader, part, memoryLimit, sink, index);
        SpanFilter kept;
        kept.set(filter);
        kept.learn(index);
        SelfTimeSum sum(index, part.range->fromNs, part.range->toNs, by,
                        [&kept](const TimelineSpan& span) { return kept.keeps(span); });
        while (!sum.advance(kSpansAtOnce)) {
            checkWanted(sink);
            sink.progress(kReading + (1 - kReading) * double(sum.looked()) / double(sum.spans()));
        }
        sink.add(
            selfTimesText(sum.rows(), double(part.range->toNs - part.range->fromNs), QLatin1Char(',')).toStdString());
    };
}

} // namespace kvscope::ui
