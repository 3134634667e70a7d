// The report as one HTML file: styles and pictures inside, no scripts.
#include "ui/definitions.h"
#include "ui/models/format.h"
#include "ui/models/run_list_model.h"
#include "ui/report.h"
#include "ui/theme.h"

#include <QBuffer>
#include <QFileInfo>

#include <algorithm>
#include <array>
#include <cmath>

namespace kvscope::ui {
namespace {

const char* const kStyle = R"(
:root { --ink: #1b2230; --muted: #5c6675; --line: #dde2ea; --wash: #f5f7fa; --accent: #2f5fd0; --warn: #b3261e; }
* { box-sizing: border-box; }
body { margin: 0; font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: var(--ink); background: #fff; }
main, header > div { max-width: 1120px; margin: 0 auto; padding: 0 32px; }
header { background: #131a26; color: #fff; padding: 34px 0 30px; }
header h1 { margin: 0 0 4px; font-size: 27px; letter-spacing: -.01em; }
header p { margin: 0; color: #aeb8c8; }
h2 { margin: 44px 0 12px; font-size: 19px; letter-spacing: -.01em; }
h3 { margin: 22px 0 6px; font-size: 15px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: 18px; margin-top: 30px; }
.card { border: 1px solid var(--line); border-top: 4px solid var(--run); border-radius: 8px; padding: 16px 20px 18px; }
.card h3 { margin: 0; font-size: 16px; }
.card p { margin: 0 0 12px; color: var(--muted); font-size: 13px; }
.figures { display: grid; grid-template-columns: repeat(4, auto); gap: 4px 18px; }
.figures b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; letter-spacing: -.02em; white-space: nowrap; }
.figures span { color: var(--muted); font-size: 12px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
thead th { color: var(--muted); font-weight: 600; font-size: 13px; border-bottom: 2px solid var(--line); }
td.note { color: var(--muted); font-size: 13px; }
td.bad { color: var(--warn); font-weight: 600; }
.swatch { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 8px; }
.bar { display: flex; height: 26px; border-radius: 4px; overflow: hidden; margin: 6px 0 4px; }
.bar i { display: block; height: 100%; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); gap: 18px; }
figure { margin: 0; }
figure img { width: 100%; height: auto; border: 1px solid var(--line); border-radius: 6px; display: block; }
figcaption { color: var(--muted); font-size: 13px; margin-top: 5px; }
dl { columns: 2; column-gap: 36px; margin: 0; }
dl div { break-inside: avoid; margin-bottom: 12px; }
dt { font-weight: 600; }
dd { margin: 0; color: var(--muted); font-size: 13.5px; }
.warning { background: #fdecea; color: var(--warn); border-radius: 6px; padding: 10px 14px; margin-top: 18px; }
footer { color: var(--muted); font-size: 13px; margin: 48px 0 40px; border-top: 1px solid var(--line); padding-top: 14px; }
@media (max-width: 700px) { dl { columns: 1; } .figures { grid-template-columns: repeat(2, auto); } main, header > div { padding: 0 18px; } }
@media print { header { -webkit-print-color-adjust: exact; print-color-adjust: exact; } figure, tr { break-inside: avoid; } }
)";

QString escaped(const QString& text) { return text.toHtmlEscaped(); }
QString runName(const ReportRun& run) { return escaped(QString::fromStdString(run.row.name)); }

QColor runColour(std::size_t index) {
    const Theme& theme = Theme::light();
    const std::array<QColor, 4> colours{theme.runA, theme.runB, theme.origin[2], theme.origin[3]};
    return colours[index % colours.size()];
}

QColor componentColour(const std::string& component) {
    const Theme& theme = Theme::light();
    std::size_t index = theme.component.size() - 1; // other
    for (std::size_t stage = 0; stage < kStageNames.size(); ++stage)
        if (kStageNames[stage] == component) index = stage;
    for (std::size_t stage = 0; stage < kStepStageNames.size(); ++stage)
        if (kStepStageNames[stage] == component) index = kStageNames.size() + stage;
    return theme.component[index];
}

QString table(const Report& report, const std::vector<ReportRow>& rows) {
    QString html = QStringLiteral("<div class=\"scroll\"><table><thead><tr><th></th>");
    for (std::size_t run = 0; run < report.runs.size(); ++run)
        html += QStringLiteral("<th><span class=\"swatch\" style=\"background:%1\"></span>%2</th>")
                    .arg(runColour(run).name(), runName(report.runs[run]));
    html += QStringLiteral("<th></th></tr></thead><tbody>");
    for (const ReportRow& row : rows) {
        html += QStringLiteral("<tr><td>%1</td>").arg(escaped(row.name));
        for (const QString& value : row.values) html += QStringLiteral("<td>%1</td>").arg(escaped(value));
        html += QStringLiteral("<td class=\"note\">%1</td></tr>").arg(escaped(row.note));
    }
    return html + QStringLiteral("</tbody></table></div>");
}

QString card(const ReportRun& run, std::size_t index) {
    const auto number = [](const QString& value, const QString& caption) {
        return QStringLiteral("<div><b>%1</b><span>%2</span></div>").arg(escaped(value), escaped(caption));
    };
    QString html =
        QStringLiteral("<section class=\"card\" style=\"--run:%1\"><h3>%2</h3><p>%3</p><div class=\"figures\">")
            .arg(runColour(index).name(), runName(run),
                 escaped(QStringLiteral("%1 · %2").arg(QFileInfo(run.path).fileName(), statusText(run.row, false))));
    html += number(formatRate(run.summary.decodeSteps == 0 ? std::nan("") : run.summary.tokensPerSecond),
                   QStringLiteral("tokens/s"));
    html += number(formatShare(run.summary.hits, run.summary.hits + run.summary.misses), QStringLiteral("hit rate"));
    html += number(formatRatio(run.summary.localityMean), QStringLiteral("mean locality γ"));
    html += number(formatDuration(std::int64_t(run.summary.exposedMs * 1e6)),
                   QStringLiteral("exposed (%1)").arg(QString::fromStdString(run.row.timing)));
    return html + QStringLiteral("</div></section>");
}

QString breakdown(const Report& report) {
    QString html;
    for (const ReportRun& run : report.runs) {
        std::int64_t total = 0;
        for (const ReportShare& share : run.breakdown) total += share.totalNs;
        html += QStringLiteral("<h3>%1</h3>").arg(runName(run));
        if (total == 0) {
            html += QStringLiteral("<p class=\"note\">No decode step was recorded.</p>");
            continue;
        }
        html += QStringLiteral("<div class=\"bar\" role=\"img\" aria-label=\"Shares of decode time\">");
        for (const ReportShare& share : run.breakdown)
            html += QStringLiteral("<i style=\"width:%1%;background:%2\" title=\"%3\"></i>")
                        .arg(100.0 * double(share.totalNs) / double(total), 0, 'f', 3)
                        .arg(componentColour(share.component).name(), escaped(QString::fromStdString(share.component)));
        html += QStringLiteral(
            "</div><table><thead><tr><th>stage</th><th>total</th><th>per step</th><th>share of decode time</th>"
            "</tr></thead><tbody>");
        for (const ReportShare& share : run.breakdown)
            html += QStringLiteral(
                        "<tr><td><span class=\"swatch\" style=\"background:%1\"></span>%2</td><td>%3</td><td>%4</td>"
                        "<td>%5</td></tr>")
                        .arg(componentColour(share.component).name(), escaped(QString::fromStdString(share.component)),
                             formatDuration(share.totalNs),
                             formatDuration(share.totalNs / std::max<std::int64_t>(1, run.summary.decodeSteps)),
                             formatShare(share.totalNs, total));
        html += QStringLiteral("</tbody></table>");
    }
    return html;
}

QString figures(const Report& report) {
    QString html;
    for (const std::vector<ReportFigure>& ofRuns : report.figures) {
        if (ofRuns.empty()) continue;
        html += QStringLiteral("<h3>%1</h3><div class=\"plots\">").arg(escaped(ofRuns.front().title));
        for (std::size_t run = 0; run < ofRuns.size(); ++run) {
            QByteArray png;
            QBuffer buffer(&png);
            buffer.open(QIODevice::WriteOnly);
            ofRuns[run].picture.save(&buffer, "PNG");
            html += QStringLiteral("<figure><img alt=\"%1: %2\" src=\"data:image/png;base64,%3\"><figcaption>%2. "
                                   "%4</figcaption></figure>")
                        .arg(escaped(ofRuns[run].title), runName(report.runs[run]), QString::fromLatin1(png.toBase64()),
                             escaped(ofRuns[run].caption));
        }
        html += QStringLiteral("</div>");
    }
    return html;
}

} // namespace

QString reportHtml(const Report& report) {
    QString title = report.runs.size() == 1 ? QString::fromStdString(report.runs.front().row.name)
                                            : QStringLiteral("%1 runs compared").arg(report.runs.size());
    title = escaped(title);
    QString html =
        QStringLiteral(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
            "content=\"width=device-width, initial-scale=1\"><title>%1 – KVScope report</title><style>%2</style>"
            "</head><body><header><div><h1>%1</h1><p>KVScope report · %3</p></div></header><main>")
            .arg(title, QString::fromLatin1(kStyle), escaped(report.createdUtc));
    for (const ReportRun& run : report.runs)
        if (const QString loss = lossText(run.row); !loss.isEmpty())
            html += QStringLiteral("<p class=\"warning\">%1: %2.</p>").arg(runName(run), escaped(loss));
    html += QStringLiteral("<div class=\"cards\">");
    for (std::size_t run = 0; run < report.runs.size(); ++run) html += card(report.runs[run], run);
    html += QStringLiteral("</div><h2>Key numbers</h2>") + table(report, keyRows(report));
    html += QStringLiteral("<h2>Where decode time goes</h2>") + breakdown(report);
    if (!report.figures.empty()) html += QStringLiteral("<h2>Figures</h2>") + figures(report);
    html += QStringLiteral("<h2>What ran</h2>") + table(report, configuration(report));
    html += QStringLiteral("<h2>Health of the recording</h2>") + table(report, health(report));
    html += QStringLiteral("<h2>Definitions</h2><dl>");
    for (const Definition& definition : definitions())
        html += QStringLiteral("<div><dt>%1</dt><dd>%2</dd></div>")
                    .arg(escaped(QString::fromUtf8(definition.title)), escaped(QString::fromUtf8(definition.text)));
    return html +
           QStringLiteral(
               "</dl><footer>Written by KVScope. Times marked modelled are computed from recorded events and the "
               "stated link; all others were measured.</footer></main></body></html>\n");
}

} // namespace kvscope::ui
