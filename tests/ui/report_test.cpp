#include "ui/report.h"

#include "kernels/base/error.h"
#include "tests/ui/small_trace.h"
#include "ui/definitions.h"
#include "ui/models/format.h"

#include <QFile>
#include <QTemporaryDir>
#include <gtest/gtest.h>

namespace kvscope::ui {
namespace {

class ReportTest : public testing::Test {
protected:
    QString trace(const char* name, const SmallTrace& shape = {}) {
        const QString path = folder.filePath(QLatin1String(name));
        recordSmallTrace(path, shape);
        return path;
    }
    static QString valueOf(const std::vector<ReportRow>& rows, const char* name, int run = 0) {
        for (const ReportRow& row : rows)
            if (row.name == QString::fromUtf8(name)) return row.values.at(run);
        ADD_FAILURE() << "no row " << name;
        return {};
    }
    QTemporaryDir folder;
};

TEST_F(ReportTest, HoldsTheNumbersOfTheTrace) {
    const Report report = collectReport({trace("a.kvtrace")});
    ASSERT_EQ(report.runs.size(), 1U);
    const ReportRun& run = report.runs.front();
    EXPECT_EQ(run.summary.decodeSteps, 6);
    EXPECT_EQ(run.summary.promptTokens, 70);
    EXPECT_DOUBLE_EQ(run.summary.decodeMs, 12.0);
    EXPECT_DOUBLE_EQ(run.summary.tokensPerSecond, 500.0);
    EXPECT_EQ(run.summary.misses, 8 + 5 * 4); // the first step is cold
    EXPECT_EQ(run.coldMisses, 8);
    EXPECT_EQ(run.summary.hits, 5 * 4);
    const std::vector<ReportRow> rows = keyRows(report);
    EXPECT_EQ(valueOf(rows, "Decode speed"), "500 tokens/s");
    EXPECT_EQ(valueOf(rows, "Misses"), "28");
    EXPECT_EQ(valueOf(rows, "Hit rate"), "41.7 %");
    EXPECT_EQ(valueOf(rows, "To device"), formatBytes(std::int64_t(28) * 32768));
    EXPECT_EQ(valueOf(rows, "Exposed transfer time"), formatDuration(28 * 500));
    EXPECT_EQ(valueOf(rows, "Locality γ, mean"), "1.000");
    std::int64_t parts = 0;
    for (const ReportShare& share : run.breakdown) parts += share.totalNs;
    EXPECT_EQ(parts, 12'000'000) << "components and other add up to the wall time";
}

TEST_F(ReportTest, HtmlIsSelfContainedAndShowsRunsSideBySide) {
    SmallTrace second;
    second.name = "Quest <on> a test model";
    second.method = "quest";
    second.stepNs = 4'000'000;
    Report report = collectReport({trace("a.kvtrace"), trace("b.kvtrace", second)});
    addFigures(report);
    const QString path = folder.filePath("report.html");
    writeReport(report, path);
    QFile file(path);
    ASSERT_TRUE(file.open(QIODevice::ReadOnly));
    const QString html = QString::fromUtf8(file.readAll());
    EXPECT_TRUE(html.contains("500 tokens/s"));
    EXPECT_TRUE(html.contains("250 tokens/s"));
    EXPECT_TRUE(html.contains("Quest &lt;on&gt; a test model")) << "names are text, not markup";
    EXPECT_TRUE(html.contains("modelled"));
    EXPECT_TRUE(html.contains("data:image/png;base64,"));
    EXPECT_FALSE(html.contains("http://") || html.contains("https://") || html.contains("<script"));
    for (const Definition& definition : definitions())
        EXPECT_TRUE(html.contains(QString::fromUtf8(definition.title).toHtmlEscaped()));
    for (const std::vector<ReportFigure>& figures : report.figures) {
        ASSERT_EQ(figures.size(), 2U);
        for (const ReportFigure& figure : figures) EXPECT_FALSE(figure.picture.isNull()) << figure.title.toStdString();
    }
}

TEST_F(ReportTest, RunsOfTheSameNameAreNumbered) {
    const Report report = collectReport({trace("a.kvtrace"), trace("b.kvtrace")});
    ASSERT_EQ(report.runs.size(), 2U);
    EXPECT_EQ(report.runs[0].row.name, "NOSA on a test model (1)");
    EXPECT_EQ(report.runs[1].row.name, "NOSA on a test model (2)");
}

TEST_F(ReportTest, PdfHasPages) {
    const Report report = collectReport({trace("a.kvtrace")});
    const QString path = folder.filePath("report.pdf");
    writeReport(report, path);
    QFile file(path);
    ASSERT_TRUE(file.open(QIODevice::ReadOnly));
    const QByteArray pdf = file.readAll();
    EXPECT_TRUE(pdf.startsWith("%PDF-"));
    EXPECT_TRUE(pdf.contains("/Type /Page"));
}

TEST_F(ReportTest, ErrorsNameTheFileAndTheMend) {
    const QString path = trace("a.kvtrace");
    const auto messageOf = [](auto&& action) {
        try {
            action();
        } catch (const Error& error) {
            return oneLine(error);
        }
        return std::string();
    };
    EXPECT_NE(messageOf([&] { collectReport({folder.filePath("none.kvtrace")}); }).find("none.kvtrace"),
              std::string::npos);
    const Report report = collectReport({path});
    EXPECT_NE(messageOf([&] { writeReport(report, folder.filePath("report.doc")); }).find(".html or .pdf"),
              std::string::npos);
    for (const char* name : {"no/such/folder/report.html", "no/such/folder/report.pdf"})
        EXPECT_NE(messageOf([&] { writeReport(report, folder.filePath(QLatin1String(name))); }).find(name),
                  std::string::npos);
    EXPECT_TRUE(QFile::exists(path));
}

} // namespace
} // namespace kvscope::ui
