#include "ui/report.h"

#include "kernels/base/error.h"
#include "ui/models/format.h"
#include "ui/models/run_list_model.h"

#include <QDateTime>
#include <QFileInfo>
#include <QJsonDocument>
#include <QJsonObject>
#include <QSaveFile>

#include <algorithm>
#include <map>

namespace kvscope::ui {
namespace {

ReportRun readRun(TraceReader& reader, const RunRow& row) {
    ReportRun run;
    run.path = QString::fromStdString(reader.path());
    run.row = row;
    run.summary = summarize(reader, row.runId);
    for (const StepRow& step : reader.steps(row.runId)) {
        if (step.phase == Phase::Prefill) continue;
        if (run.slowestStep < 0) run.coldMisses = step.misses;
        if (run.slowestStep < 0 || step.durationNs > run.slowestStepNs) {
            run.slowestStepNs = step.durationNs;
            run.slowestStep = step.step;
        }
    }
    for (const ComponentShare& part : run.summary.components)
        if (part.phase == nameOf(Phase::Decode) && part.totalNs > 0)
            run.breakdown.push_back({part.component, part.totalNs});
    std::stable_sort(run.breakdown.begin(), run.breakdown.end(),
                     [](const ReportShare& a, const ReportShare& b) { return a.totalNs > b.totalNs; });
    return run;
}

template <class Value>
ReportRow makeRow(const Report& report, const QString& name, const QString& note, Value&& value) {
    ReportRow row{name, note, {}};
    for (const ReportRun& run : report.runs) row.values << value(run);
    return row;
}

QString timingOf(const Report& report) {
    QStringList words;
    for (const ReportRun& run : report.runs)
        if (const QString word = QString::fromStdString(run.row.timing); !word.isEmpty() && !words.contains(word))
            words << word;
    return words.join(QStringLiteral(" / "));
}

} // namespace

Report collectReport(const QStringList& traces) {
    Report report;
    report.createdUtc = QDateTime::currentDateTimeUtc().toString(Qt::ISODate);
    for (const QString& path : traces) {
        TraceReader reader(QFileInfo(path).absoluteFilePath().toStdString());
        const std::vector<RunRow> rows = reader.runs();
        if (rows.empty())
            throw Error(ErrorKind::BadInput, "trace " + path.toStdString() + " holds no run",
                        "record one with kvscope-cli run --trace");
        for (const RunRow& row : rows) report.runs.push_back(readRun(reader, row));
    }
    std::map<std::string, int> uses;
    for (const ReportRun& run : report.runs) ++uses[run.row.name];
    std::map<std::string, int> numbers;
    for (ReportRun& run : report.runs) { // runs of the same name must be told apart
        const std::string name = run.row.name;
        if (uses[name] > 1) run.row.name += " (" + std::to_string(++numbers[name]) + ")";
    }
    return report;
}

std::vector<ReportRow> keyRows(const Report& report) {
    const QString measured = QStringLiteral("measured"), timing = timingOf(report);
    const QString perHead = QStringLiteral("per step, layer and KV head; steps that open a block left out");
    std::vector<ReportRow> rows;
    const auto add = [&](const char* name, const QString& note, auto&& value) {
        rows.push_back(makeRow(report, QString::fromUtf8(name), note, value));
    };
    const auto milliseconds = [](double value) { return formatDuration(std::int64_t(value * 1e6)); };
    const auto perStep = [&](double total, const RunSummary& s) {
        return s.decodeSteps > 0 ? milliseconds(total / double(s.decodeSteps)) : QStringLiteral("–");
    };
    add("Decode speed", "measured, all sequences", [](const ReportRun& r) {
        return r.summary.decodeSteps == 0 ? QStringLiteral("–")
                                          : formatRate(r.summary.tokensPerSecond) + QStringLiteral(" tokens/s");
    });
    add("Decode steps", {}, [](const ReportRun& r) { return formatCount(r.summary.decodeSteps); });
    add("Tokens decoded", "all sequences", [](const ReportRun& r) { return formatCount(r.summary.decodedTokens); });
    add("Prompt tokens", "all sequences", [](const ReportRun& r) { return formatCount(r.summary.promptTokens); });
    add("Prefill time", measured, [&](const ReportRun& r) { return milliseconds(r.summary.prefillMs); });
    add("Decode time", measured, [&](const ReportRun& r) { return milliseconds(r.summary.decodeMs); });
    add("Mean step", measured, [&](const ReportRun& r) { return perStep(r.summary.decodeMs, r.summary); });
    add("Slowest step", measured, [](const ReportRun& r) {
        return r.slowestStep < 0
                   ? QStringLiteral("–")
                   : QStringLiteral("%1 (step %2)").arg(formatDuration(r.slowestStepNs)).arg(r.slowestStep);
    });
    add("Locality γ, mean", perHead, [](const ReportRun& r) { return formatRatio(r.summary.localityMean); });
    add("Locality γ, smallest", perHead, [](const ReportRun& r) { return formatRatio(r.summary.localityMin); });
    add("Hit rate", "of selected blocks",
        [](const ReportRun& r) { return formatShare(r.summary.hits, r.summary.hits + r.summary.misses); });
    add("Hits", "blocks", [](const ReportRun& r) { return formatCount(r.summary.hits); });
    add("Misses", "blocks", [](const ReportRun& r) { return formatCount(r.summary.misses); });
    add("Misses of the first decode step", "blocks, cold slots",
        [](const ReportRun& r) { return formatCount(r.coldMisses); });
    add("To device", "decode steps", [](const ReportRun& r) { return formatBytes(r.summary.h2dBytes); });
    add("To host", "decode steps", [](const ReportRun& r) { return formatBytes(r.summary.d2hBytes); });
    add("Transfer time", timing, [&](const ReportRun& r) { return milliseconds(r.summary.transferMs); });
    add("Exposed transfer time", timing, [&](const ReportRun& r) { return milliseconds(r.summary.exposedMs); });
    add("Exposed per step", timing, [&](const ReportRun& r) { return perStep(r.summary.exposedMs, r.summary); });
    return rows;
}

std::vector<ReportRow> configuration(const Report& report) {
    const auto text = [](const std::string& value) {
        return value.empty() ? QStringLiteral("–") : QString::fromStdString(value);
    };
    std::vector<ReportRow> rows{
        makeRow(report, "Model", "", [&](const ReportRun& r) { return text(r.row.model); }),
        makeRow(report, "Shape", "",
                [](const ReportRun& r) {
                    return QStringLiteral("%1 layers, %2 KV heads × %3, %4 query heads")
                        .arg(r.row.layers)
                        .arg(r.row.kvHeads)
                        .arg(r.row.headDim)
                        .arg(r.row.queryHeads);
                }),
        makeRow(report, "Sequences", "", [](const ReportRun& r) { return QString::number(r.row.sequences); }),
        makeRow(report, "Method", "", [&](const ReportRun& r) { return text(r.row.method); }),
    };
    QStringList keys; // of all methods, in the order they declare them
    std::vector<QJsonObject> objects;
    for (const ReportRun& run : report.runs) {
        objects.push_back(QJsonDocument::fromJson(QByteArray::fromStdString(run.row.paramsJson)).object());
        for (const QString& key : objects.back().keys())
            if (!keys.contains(key)) keys << key;
    }
    for (const QString& key : keys) {
        ReportRow row{key, QStringLiteral("parameter"), {}};
        for (const QJsonObject& object : objects)
            row.values << (object.contains(key) ? object.value(key).toVariant().toString() : QStringLiteral("–"));
        rows.push_back(row);
    }
    rows.push_back(makeRow(report, "Block size", "", [](const ReportRun& r) {
        return QStringLiteral("%1 tokens, %2").arg(r.row.blockSize).arg(formatBytes(r.row.blockBytes));
    }));
    rows.push_back(makeRow(report, "Budget", "per KV head", [](const ReportRun& r) {
        return r.row.budgetBlocks == 0 ? QStringLiteral("all blocks")
                                       : QStringLiteral("%1 blocks").arg(formatCount(r.row.budgetBlocks));
    }));
    rows.push_back(makeRow(report, "Device slots", "per layer and KV head", [](const ReportRun& r) {
        return r.row.deviceSlots == 0 ? QStringLiteral("everything resident")
                                      : QStringLiteral("%1 blocks").arg(formatCount(r.row.deviceSlots));
    }));
    rows.push_back(makeRow(report, "Link", "", [&](const ReportRun& r) { return text(r.row.link); }));
    rows.push_back(makeRow(report, "Device", "", [&](const ReportRun& r) { return text(r.row.device); }));
    rows.push_back(makeRow(report, "Recorded", "level", [&](const ReportRun& r) { return text(r.row.level); }));
    rows.push_back(makeRow(report, "Started", "UTC", [&](const ReportRun& r) { return text(r.row.createdUtc); }));
    rows.push_back(makeRow(report, "Trace", "", [](const ReportRun& r) { return QFileInfo(r.path).fileName(); }));
    return rows;
}

std::vector<ReportRow> health(const Report& report) {
    return {
        makeRow(report, "Status", "", [](const ReportRun& r) { return statusText(r.row, false); }),
        makeRow(report, "Message", "",
                [](const ReportRun& r) {
                    return r.row.statusMessage.empty() ? QStringLiteral("–")
                                                       : QString::fromStdString(r.row.statusMessage);
                }),
        makeRow(report, "Dropped steps", "not recorded",
                [](const ReportRun& r) { return formatCount(r.row.droppedSteps); }),
        makeRow(report, "Writer time", "beside the engine",
                [](const ReportRun& r) { return formatDuration(r.row.writerBusyNs); }),
    };
}

void writeReport(const Report& report, const QString& path) {
    const QString suffix = QFileInfo(path).suffix().toLower();
    if (suffix == QLatin1String("pdf")) return writeReportPdf(report, path);
    if (suffix != QLatin1String("html") && suffix != QLatin1String("htm"))
        throw Error(ErrorKind::BadInput, "report file " + path.toStdString() + " has an unknown suffix",
                    "name it .html or .pdf");
    QSaveFile file(path);
    const QByteArray html = reportHtml(report).toUtf8();
    if (!file.open(QIODevice::WriteOnly) || file.write(html) != html.size() || !file.commit())
        throw Error(ErrorKind::Storage, "report file " + path.toStdString() + ": " + file.errorString().toStdString(),
                    "choose a folder that exists and is writable");
}

} // namespace kvscope::ui
