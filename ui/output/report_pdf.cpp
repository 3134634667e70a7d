// Writes a report as a PDF with A4 pages.
#include "base/error.h"
#include "ui/frame/definitions.h"
#include "ui/frame/saved_file.h"
#include "ui/look/theme.h"
#include "ui/output/report.h"
#include "ui/output/report_pages.h"

#include <algorithm>
#include <cmath>
#include <new>

namespace kvscope::ui {
namespace {

using reports::Basis;
using reports::Cell;
using reports::Report;
using reports::RunData;
using reports::Table;

const QColor kModelled(0x8a, 0x5a, 0x00);
constexpr std::size_t kRunsAcross = 4; // columns of a table with a column per run; more runs go into further tables

QString words(const std::string& text) { return QString::fromStdString(text); }

QColor runColour(std::size_t index) {
    const Theme& theme = Theme::light();
    const QColor colours[] = {theme.runA, theme.runB, theme.origin[2], theme.origin[3]};
    return colours[index % 4];
}

QColor componentColour(const std::string& component) {
    const Theme& theme = Theme::light();
    for (std::size_t stage = 0; stage < kStageNames.size(); ++stage)
        if (kStageNames[stage] == component) return theme.component[stage];
    for (std::size_t stage = 0; stage < kStepStageNames.size(); ++stage)
        if (kStepStageNames[stage] == component) return theme.component[kStageNames.size() + stage];
    return theme.component.back();
}

bool notMeasured(const Cell& cell) {
    return cell.isNumber() && (cell.basis == Basis::Modelled || cell.basis == Basis::Predicted);
}

/// The columns of a table that stand side by side, with their widths in points. A column is as wide as its text; if the
/// page has not enough room, the columns of words are wrapped.
struct Layout {
    std::vector<std::size_t> columns; // columns of the table
    std::vector<double> widths;
    double size = 8; // size of the text, points
};

Layout layoutOf(const Table& table, std::vector<std::size_t> columns) {
    constexpr double kGap = 9, kNarrowest = 52;
    Layout layout{std::move(columns), {}, 8};
    for (const double size : {8.0, 7.0, 6.2}) {
        layout.size = size;
        layout.widths.clear();
        std::vector<bool> wraps;
        double fixed = 0, flexible = 0;
        for (const std::size_t column : layout.columns) {
            double widest = 0;
            for (const QString& word : words(table.columns[column].title).split(QLatin1Char(' ')))
                widest = std::max(widest, Pages::textWidth(word, size, true));
            bool text = false;
            for (const auto& row : table.rows) {
                widest = std::max(widest, Pages::textWidth(words(display(row[column])), size));
                text |= !row[column].isNumber() && row[column].value.index() == 3;
            }
            layout.widths.push_back(widest + kGap);
            wraps.push_back(text && widest > kNarrowest);
            (wraps.back() ? flexible : fixed) += layout.widths.back();
        }
        const double room = kWidth - fixed;
        if (flexible <= room || flexible <= 0) break;
        if (room < 0.45 * flexible && size > 6.2) continue; // try a smaller size before rows become very high
        for (std::size_t i = 0; i < layout.widths.size(); ++i)
            if (wraps[i]) layout.widths[i] = std::max(kNarrowest, layout.widths[i] * room / flexible);
        break;
    }
    double total = 0;
    for (const double width : layout.widths) total += width;
    const double stretch = total > kWidth || total < kWidth * 0.6 ? std::min(kWidth / total, 1.6) : kWidth / total;
    for (double& width : layout.widths) width *= stretch;
    return layout;
}

void drawTable(Pages& pages, const Table& table, const Layout& layout) {
    const auto numeric = [&](std::size_t column) {
        return std::any_of(table.rows.begin(), table.rows.end(),
                           [&](const auto& row) { return row[column].isNumber(); });
    };
    const double gap = 7;
    double headHeight = 0;
    for (std::size_t i = 0; i < layout.columns.size(); ++i)
        headHeight = std::max(headHeight, pages.textHeight(words(table.columns[layout.columns[i]].title),
                                                           layout.widths[i] - gap, layout.size, true));
    const auto head = [&] {
        double x = kMargin;
        for (std::size_t i = 0; i < layout.columns.size(); ++i) {
            pages.textAt(x, pages.y(), layout.widths[i] - gap, words(table.columns[layout.columns[i]].title),
                         layout.size, kMuted, true, false, numeric(layout.columns[i]) ? Qt::AlignRight : Qt::AlignLeft);
            x += layout.widths[i];
        }
        pages.skip(headHeight + 3);
        pages.rule(pages.y(), kMuted, 0.9);
        pages.skip(3);
    };
    pages.need(headHeight + 40);
    head();
    bool marked = false;
    for (const auto& row : table.rows) {
        double height = 0;
        for (std::size_t i = 0; i < layout.columns.size(); ++i)
            height = std::max(
                height, pages.textHeight(words(display(row[layout.columns[i]])), layout.widths[i] - gap, layout.size));
        if (pages.need(height + 6)) head();
        double x = kMargin;
        for (std::size_t i = 0; i < layout.columns.size(); ++i) {
            const Cell& cell = row[layout.columns[i]];
            const std::string& id = table.columns[layout.columns[i]].id;
            const bool note = id == "note", marks = notMeasured(cell);
            marked |= marks;
            if (!note || !raw(cell).empty())
                pages.textAt(x, pages.y(), layout.widths[i] - gap, words(display(cell)),
                             note ? layout.size - 0.5 : layout.size,
                             note    ? kMuted
                             : marks ? kModelled
                                     : kInk,
                             false, marks, numeric(layout.columns[i]) ? Qt::AlignRight : Qt::AlignLeft);
            x += layout.widths[i];
        }
        pages.skip(height + 2.5);
        pages.rule(pages.y());
        pages.skip(2.5);
    }
    if (marked)
        pages.paragraph(QStringLiteral("Slanted numbers are modelled: computed from recorded events and the stated "
                                       "link, not measured."),
                        7.5, kModelled);
    pages.skip(8);
}

void table(Pages& pages, const Report& report, const char* id, bool heading = true) {
    const Table* found = report.table(id);
    if (!found || found->rows.empty()) return;
    if (heading) pages.heading(words(found->title));
    pages.paragraph(words(found->about), 8.5, kMuted, false, 6);
    std::vector<std::size_t> shown, perRun;
    for (std::size_t i = 0; i < found->columns.size(); ++i)
        if (!found->columns[i].csvOnly) shown.push_back(i);
    const bool wide = found->columns.front().id == "quantity";
    if (!wide || report.runs.size() <= kRunsAcross) return drawTable(pages, *found, layoutOf(*found, shown));
    for (std::size_t first = 0; first < report.runs.size(); first += kRunsAcross) {
        std::vector<std::size_t> part{shown.front()};
        for (std::size_t run = first; run < std::min(report.runs.size(), first + kRunsAcross); ++run)
            part.push_back(1 + run);
        part.push_back(shown.back());
        drawTable(pages, *found, layoutOf(*found, part));
    }
}

/// Draws a bar for the mean decode step of each run, divided into components, all bars to one scale. A dashed outline
/// at the end of a bar is the time that a modelled link would add.
void breakdownBars(Pages& pages, const Report& report) {
    const auto known = [](double ms) { return std::isfinite(ms) ? ms * 1e6 : 0.0; };
    const auto modelled = [&](const RunData& run) {
        return run.row.timing == Timing::Modelled ? known(run.summary.exposedMsPerStep) : 0.0;
    };
    double longest = 0;
    for (const RunData& run : report.runs) longest = std::max(longest, known(run.summary.stepMs) + modelled(run));
    for (const RunData& run : report.runs) {
        pages.need(70);
        pages.paragraph(QStringLiteral("%1 · mean decode step %2")
                            .arg(words(run.row.name),
                                 words(reports::display(run.summary.stepMs * 1e6, reports::Quantity::Nanoseconds))),
                        9, kInk, true);
        if (!(run.summary.stepMs > 0)) continue;
        double x = kMargin;
        std::vector<const ComponentShare*> parts;
        for (const ComponentShare& part : run.summary.components)
            if (part.phase == Phase::Decode && part.totalNs > 0) parts.push_back(&part);
        for (const ComponentShare* part : parts) {
            const double width = kWidth * run.componentMeanNs(part->component) / longest;
            pages.painter().fillRect(QRectF(x, pages.y(), width, 14), componentColour(part->component));
            x += width;
        }
        if (const double extra = kWidth * modelled(run) / longest; extra > 1) {
            pages.painter().setPen(QPen(kModelled, 0.8, Qt::DashLine));
            pages.painter().drawRect(QRectF(x + 0.6, pages.y() + 0.4, extra - 1, 13.2));
        }
        pages.skip(19);
        constexpr std::size_t kColumns = 4;
        for (std::size_t part = 0; part < parts.size(); ++part) {
            if (part % kColumns == 0) pages.need(13);
            const double left = kMargin + double(part % kColumns) * kWidth / kColumns;
            pages.painter().fillRect(QRectF(left, pages.y() + 2, 6.5, 6.5), componentColour(parts[part]->component));
            pages.textAt(
                left + 10, pages.y(), kWidth / kColumns - 12,
                words(parts[part]->component + "  " +
                      reports::display(run.componentMeanNs(parts[part]->component) / (run.summary.stepMs * 1e6),
                                       reports::Quantity::Share)),
                8, kInk);
            if (part % kColumns == kColumns - 1 || part + 1 == parts.size()) pages.skip(12.5);
        }
        pages.skip(7);
    }
    pages.paragraph(QStringLiteral("All bars have one scale. A dashed outline is exposed transfer time of a modelled "
                                   "link: what it would add to the measured step."),
                    8, kMuted, false, 8);
}

void cover(Pages& pages, const Report& report) {
    constexpr double kBand = 92;
    pages.painter().fillRect(QRectF(-1, -1, kPageWidth + 3, kBand + 1), kHeader);
    pages.textAt(kMargin, 30, kWidth, words(report.title()), 19, Qt::white, true);
    pages.textAt(kMargin, 58, kWidth, QStringLiteral("KVScope report · %1").arg(words(report.createdUtc)), 9,
                 QColor(0xae, 0xb8, 0xc8));
    pages.skip(kBand - kMargin + 18);
    for (std::size_t index = 0; index < report.runs.size(); ++index) {
        const RunData& run = report.runs[index];
        pages.need(62);
        const double top = pages.y();
        pages.painter().fillRect(QRectF(kMargin, top, 3, 50), runColour(index));
        pages.textAt(kMargin + 12, top, kWidth - 12, QString::fromStdString(run.row.name), 10.5, kInk, true);
        const Table& key = *report.table("key_numbers");
        const auto value = [&](const char* quantity) {
            return words(display((*key.find("quantity", quantity))[index + 1]));
        };
        const std::pair<QString, QString> numbers[] = {
            {value("Decode speed, tokens per second"),
             run.summary.gapsMatter() ? QStringLiteral("tokens/s of the steps' time, %1 by the clock")
                                            .arg(value("Decode speed with the time between steps"))
                                      : QStringLiteral("tokens/s of the steps' time (measured)")},
            {value("Hit rate"), QStringLiteral("hit rate, %1").arg(words(run.summary.ratesCount()))},
            {value("Locality γ, mean"), QStringLiteral("mean locality γ")},
            {value("Exposed transfer time"), QStringLiteral("exposed transfer (%1)").arg(words(run.row.timing.text()))},
        };
        for (int number = 0; number < 4; ++number) {
            const double x = kMargin + 12 + number * (kWidth - 12) / 4;
            pages.textAt(x, top + 17, kWidth / 4, numbers[number].first, 14, kInk, true);
            pages.textAt(x, top + 37, kWidth / 4 - 6, numbers[number].second, 7.5, kMuted);
        }
        pages.skip(60);
        if (const std::string loss = reports::lossText(run); !loss.empty())
            pages.paragraph(words(loss), 9, Theme::light().danger, true);
    }
}

void figures(Pages& pages, const Report& report, const ReportFigures& views) {
    for (const std::vector<ReportFigure>& ofRuns : views)
        for (std::size_t run = 0; run < ofRuns.size(); ++run) {
            const QImage& picture = ofRuns[run].picture;
            const double height = kWidth * picture.height() / std::max(1, picture.width());
            pages.need(height + 44);
            pages.skip(10);
            pages.paragraph(report.runs.size() == 1
                                ? ofRuns[run].title
                                : QStringLiteral("%1 · %2").arg(ofRuns[run].title,
                                                                QString::fromStdString(report.runs[run].row.name)),
                            9.5, kInk, true);
            if (!picture.isNull()) {
                pages.painter().drawImage(QRectF(kMargin, pages.y(), kWidth, height), picture);
                pages.skip(height + 4);
            }
            pages.paragraph(ofRuns[run].caption + QLatin1Char('.'), 8, kMuted);
        }
}

void insights(Pages& pages, const Report& report) {
    pages.heading(QStringLiteral("Insights"));
    for (std::size_t run = 0; run < report.runs.size(); ++run) {
        const InsightReport& found = report.insights[run];
        pages.need(60);
        pages.paragraph(words(report.runs[run].row.name), 8.5, kMuted, true, 2);
        if (!found.exposure.headline.empty()) {
            pages.paragraph(words(found.exposure.headline + "."), 10.5, kInk, true, 2);
            pages.paragraph(words(found.exposure.detail), 8.5, kMuted, false, 6);
        }
        for (const Insight& insight : found.insights) {
            pages.need(40);
            pages.paragraph(words(insight.title), 9, insight.severity == Severity::Alarm ? Theme::light().danger : kInk,
                            true, 1);
            pages.paragraph(words(insight.detail + " " + insight.advice), 8.5, kMuted, false, 6);
        }
        pages.skip(4);
    }
}

void commands(Pages& pages, const Report& report) {
    const Table& table = *report.table("reproduce");
    pages.heading(words(table.title));
    pages.paragraph(words(table.about), 8.5, kMuted, false, 6);
    for (const auto& row : table.rows) {
        pages.paragraph(words(raw(row[0])), 9, kInk, true, 2);
        if (const QString command = words(raw(row[1])); !command.isEmpty())
            pages.paragraph(command, 8.5, kInk, false, 4);
        if (const QString note = words(raw(row[2])); !note.isEmpty()) pages.paragraph(note, 8.5, kMuted, false, 6);
    }
}

} // namespace

void writeReportPdf(const Report& report, const ReportFigures& views, const QString& path) {
    QBuffer document;
    document.open(QIODevice::WriteOnly);
    {
        if (!hasMemoryForPdf()) throw std::bad_alloc();
        QPdfWriter writer(&document);
        writer.setResolution(288);
        writer.setPageSize(QPageSize(QPageSize::A4));
        writer.setPageMargins(QMarginsF(0, 0, 0, 0));
        writer.setTitle(QStringLiteral("KVScope report"));
        writer.setCreator(QStringLiteral("KVScope"));
        Pages pages(writer, QStringLiteral("KVScope report · %1").arg(words(report.createdUtc)));
        cover(pages, report);
        insights(pages, report);
        table(pages, report, "key_numbers");
        table(pages, report, "intervals");
        for (const char* id :
             {"serving", "serving_classes", "serving_plans", "comparison", "verdict", "component_changes"})
            table(pages, report, id);
        pages.heading(words(report.table("breakdown")->title));
        breakdownBars(pages, report);
        table(pages, report, "breakdown", false);
        if (!views.empty()) {
            pages.heading(QStringLiteral("Figures"), 260);
            figures(pages, report, views);
        }
        for (const char* id : {"slowest_steps", "layers", "transfers", "pcie_counters", "exposure", "configuration",
                               "environment", "health"})
            table(pages, report, id);
        commands(pages, report);
        pages.heading(QStringLiteral("Definitions"));
        for (const Definition& definition : definitions()) {
            const QString text = QString::fromUtf8(definition.text);
            pages.need(18 + pages.textHeight(text, kWidth, 8.5));
            pages.paragraph(QString::fromUtf8(definition.title), 9, kInk, true, 1);
            pages.paragraph(text, 8.5, kMuted, false, 7);
        }
    }
    if (const QString why = whyNotSaved(document.data(), path); !why.isEmpty())
        throw Error(ErrorKind::Storage, ("report file " + path + ": " + why).toStdString(),
                    "choose a folder that exists, is writable and has room");
}

} // namespace kvscope::ui
