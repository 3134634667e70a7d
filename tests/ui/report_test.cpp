#include "ui/output/report.h"

#include "base/error.h"
#include "profiler/report/html.h"
#include "profiler/report/html_charts.h"
#include "tests/ui/small_trace.h"
#include "ui/frame/definitions.h"

#include <QFile>
#include <QJsonArray>
#include <QJsonDocument>
#include <QJsonObject>
#include <QRegularExpression>
#include <QTemporaryDir>
#include <QXmlStreamReader>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <map>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class ReportTest : public testing::Test {
protected:
    std::string trace(const char* name, const SmallTrace& shape = {}) {
        const QString path = folder.filePath(QLatin1String(name));
        recordSmallTrace(path, shape);
        return path.toStdString();
    }
    static std::string shown(const reports::Report& report, const char* quantity, std::size_t run = 0) {
        const auto* row = report.table("key_numbers")->find("quantity", quantity);
        if (!row) {
            ADD_FAILURE() << "no row " << quantity;
            return {};
        }
        return reports::display((*row)[run + 1]);
    }
    QByteArray contentOf(const QString& path) {
        QFile file(path);
        EXPECT_TRUE(file.open(QIODevice::ReadOnly)) << path.toStdString();
        return file.readAll();
    }
    QTemporaryDir folder;
};

TEST_F(ReportTest, ShowsTheNumbersOfTheTraceAsPeopleReadThem) {
    const reports::Report report = reports::makeReport({trace("a.kvtrace")});
    EXPECT_EQ(shown(report, "Decode speed, tokens per second"), "500");
    EXPECT_EQ(shown(report, "Misses"), "28"); // the first step is cold: 8, then 5 x 4
    EXPECT_EQ(shown(report, "Misses of the first decode step"), "8");
    EXPECT_EQ(shown(report, "Hit rate"), "50.0 %");   // without the cold step: 20 of 40
    EXPECT_EQ(shown(report, "To device"), "896 KiB"); // 28 x 32 KiB
    EXPECT_EQ(shown(report, "Exposed transfer time"), "14 µs");
    EXPECT_EQ(shown(report, "Locality γ, mean"), "1.000");
    EXPECT_EQ(shown(report, "Decode time"), "12 ms");
}

TEST_F(ReportTest, HtmlIsOneWellFormedPageThatFetchesNothing) {
    SmallTrace second;
    second.name = "Quest <on> a \"test\" model & more";
    second.method = "quest";
    second.stepNs = 4'000'000;
    second.decodeSteps = 12;
    const reports::Report report = reports::makeReport({trace("a.kvtrace"), trace("b.kvtrace", second)});
    const QString path = folder.filePath("report.html");
    writeReport(report, path);
    const QByteArray html = contentOf(path);
    QXmlStreamReader reader(html);
    int tables = 0, anchors = 0, hints = 0, hidden = 0;
    QStringList ids, targets;
    while (!reader.atEnd()) {
        if (reader.readNext() != QXmlStreamReader::StartElement) continue;
        tables += reader.name() == QLatin1String("table") ? 1 : 0;
        for (const QXmlStreamAttribute& attribute : reader.attributes()) {
            const QString name = attribute.name().toString(), value = attribute.value().toString();
            if (name == QLatin1String("id")) {
                EXPECT_FALSE(ids.contains(value)) << value.toStdString() << " is there twice";
                ids << value;
            }
            if (name == QLatin1String("href")) {
                EXPECT_TRUE(value.startsWith('#')) << value.toStdString();
                targets << value.mid(1);
                ++anchors;
            }
            EXPECT_TRUE(name != QLatin1String("src") || value.startsWith("data:image/png;base64,"));
            hints += name == QLatin1String("data-tip") ? 1 : 0;
            hidden += name == QLatin1String("class") && value == QLatin1String("csv") ? 1 : 0;
        }
    }
    EXPECT_FALSE(reader.hasError()) << reader.errorString().toStdString() << " in line " << reader.lineNumber();
    EXPECT_EQ(tables, int(std::count_if(report.tables.begin(), report.tables.end(),
                                        [](const reports::Table& table) { return !table.rows.empty(); })));
    EXPECT_GT(hints, 50) << "charts tell their numbers";
    EXPECT_GT(hidden, 0);
    EXPECT_GT(anchors, 10);
    for (const QString& target : targets) EXPECT_TRUE(ids.contains(target)) << target.toStdString();
    EXPECT_FALSE(html.contains("http://") || html.contains("https://") || html.contains("url(") ||
                 html.contains("@import") || html.contains("fetch(") || html.contains("XMLHttpRequest"));
    EXPECT_TRUE(html.contains("Quest &lt;on&gt; a &quot;test&quot; model &amp; more")) << "names are text, not markup";
    EXPECT_TRUE(html.contains("prefers-color-scheme: dark"));
    EXPECT_TRUE(html.contains("@media print"));
    EXPECT_TRUE(html.contains("data:image/png;base64,")) << "the selection view is a picture";
    for (const Definition& definition : definitions())
        EXPECT_TRUE(html.contains(reports::escaped(definition.title).c_str())) << definition.title;
}

TEST_F(ReportTest, HtmlHoldsEveryCellAsItsTableHasIt) {
    const reports::Report report = reports::makeReport({trace("a.kvtrace")});
    const QString html = QString::fromStdString(reports::html(report));
    QXmlStreamReader reader(html);
    std::map<QString, QStringList> found; // table -> raw values
    QString table;
    while (!reader.atEnd()) {
        const auto token = reader.readNext();
        if (token != QXmlStreamReader::StartElement) continue;
        if (reader.name() == QLatin1String("table")) table = reader.attributes().value("id").toString();
        if (reader.name() == QLatin1String("td")) found[table] << reader.attributes().value("data-v").toString();
    }
    for (const reports::Table& each : report.tables) {
        QStringList expected;
        for (const auto& row : each.rows)
            for (const reports::Cell& cell : row) expected << QString::fromStdString(raw(cell));
        EXPECT_EQ(found["t-" + QString::fromStdString(each.id)], expected) << each.id;
    }
}

TEST_F(ReportTest, HeatmapHoldsTheMatrixOfTheTrace) {
    const std::string file = trace("a.kvtrace");
    const reports::Report report = reports::makeReport({file});
    const QString heat = QString::fromStdString(reports::heatmap(report.runs.front(), 0));
    const QString json = QRegularExpression("application/json\">(.*)</script>").match(heat).captured(1);
    const QJsonObject data = QJsonDocument::fromJson(json.toUtf8()).object();
    EXPECT_EQ(data["columns"].toInt(), 6);
    EXPECT_EQ(data["rows"].toArray().size(), 2);
    const TraceReader reader(file);
    int compared = 0;
    for (const QJsonValue& metric : data["metrics"].toArray()) {
        const QByteArray bytes = QByteArray::fromBase64(metric["data"].toString().toLatin1());
        ASSERT_EQ(bytes.size(), 6 * 2 * 4);
        for (const MetricInfo& info : metrics()) {
            if (!metric["title"].toString().startsWith(QLatin1String(info.title))) continue;
            const StepMatrix matrix = reader.layerMatrix(1, info.metric, {}, 1, 6);
            for (int step = 0; step < 6; ++step)
                for (int row = 0; row < 2; ++row) {
                    float value = 0;
                    memcpy(&value, bytes.data() + (step * 2 + row) * 4, 4);
                    const float expected = matrix.at(step, row);
                    EXPECT_TRUE(value == expected || (std::isnan(value) && std::isnan(expected)));
                    ++compared;
                }
        }
    }
    EXPECT_GE(compared, 5 * 12) << "locality, hit rate, misses, bytes, exposed, layer time";
}

TEST_F(ReportTest, RunsOfTheSameNameAreNumbered) {
    const reports::Report report = reports::makeReport({trace("a.kvtrace"), trace("b.kvtrace")});
    ASSERT_EQ(report.runs.size(), 2U);
    EXPECT_EQ(report.runs[0].row.name, "NOSA on a test model (1)");
    EXPECT_EQ(report.runs[1].row.name, "NOSA on a test model (2)");
    EXPECT_EQ(report.title(), "2 runs compared");
}

TEST_F(ReportTest, PdfHasPagesForManyRuns) {
    std::vector<std::string> traces;
    for (const char* name : {"a", "b", "c", "d", "e", "f"}) traces.push_back(trace(name)); // more than fit side by side
    const QString path = folder.filePath("report.pdf");
    writeReport(reports::makeReport(traces), path);
    const QByteArray pdf = contentOf(path);
    EXPECT_TRUE(pdf.startsWith("%PDF-"));
    EXPECT_GE(pdf.count("/Type /Page\n"), 4);
    EXPECT_TRUE(pdf.contains("/FontFile")) << "fonts are embedded";
}

TEST_F(ReportTest, ErrorsNameTheFileAndTheMend) {
    const std::string path = trace("a.kvtrace");
    const auto messageOf = [](auto&& action) {
        try {
            action();
        } catch (const Error& error) {
            return oneLine(error);
        }
        return std::string();
    };
    const std::string missing = folder.filePath("none.kvtrace").toStdString();
    EXPECT_NE(messageOf([&] { reports::makeReport({missing}); }).find("none.kvtrace"), std::string::npos);
    const reports::Report report = reports::makeReport({path});
    EXPECT_NE(messageOf([&] { writeReport(report, folder.filePath("report.doc")); }).find(".html or .pdf"),
              std::string::npos);
    for (const char* name : {"no/such/folder/report.html", "no/such/folder/report.pdf"})
        EXPECT_NE(messageOf([&] { writeReport(report, folder.filePath(QLatin1String(name))); }).find(name),
                  std::string::npos);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
