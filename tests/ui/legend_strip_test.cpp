// A legend in plots of all sizes: its lines leave the plot its room, and names are cut only where they must be.
#include "ui/plots/legend_strip.h"

#include <gtest/gtest.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class Legend : public ::testing::Test {
protected:
    Legend() {
        plot.plotLayout()->insertRow(0);
        plot.plotLayout()->addElement(0, 0, legend);
    }
    void showNames(const QStringList& texts) {
        QVector<Swatch> swatches;
        for (const QString& text : texts) swatches << Swatch{text, Qt::blue, Swatch::Mark::Fill, {}};
        legend->setSwatches(swatches);
        names = texts;
    }
    int heightAt(QSize size) {
        plot.setViewport(QRect(QPoint(), size));
        plot.replot();
        return legend->outerRect().height();
    }

    QCustomPlot plot;
    LegendStrip* legend = new LegendStrip(&plot);
    QStringList names;
};

TEST_F(Legend, WritesNamesInFullWhereThereIsRoom) {
    showNames({"qkv_linear", "rope", "stage1", "pooling", "offloading", "attention", "o_linear", "ffn", "other"});
    EXPECT_LE(heightAt({1200, 600}), 20);
    EXPECT_EQ(legend->shownNames({1200, 600}), names);
    EXPECT_GT(heightAt({400, 600}), 20) << "the next line";
    EXPECT_EQ(legend->shownNames({400, 600}), names) << "a high plot has room for lines";
}

TEST_F(Legend, CutsTheLongestNamesInALowNarrowPlot) {
    showNames({"qkv_linear", "compression", "stage1", "pooling", "offloading", "attention", "o_linear", "ffn", "embed",
               "lm_head", "sample", "other"});
    const QSize small(320, 240);
    EXPECT_LE(heightAt(small), 240 / 4) << "most of the height is the plot's";
    const QStringList shown = legend->shownNames(small);
    ASSERT_EQ(shown.size(), names.size());
    EXPECT_NE(shown, names);
    for (qsizetype i = 0; i < names.size(); ++i) {
        EXPECT_FALSE(shown[i].isEmpty());
        EXPECT_EQ(shown[i].left(1), names[i].left(1)) << "a reader can tell them apart";
    }
    EXPECT_EQ(shown[names.indexOf("ffn")], QString("ffn")) << "short names stay";
}

TEST_F(Legend, TakesOneLineWhereItMayTakeNoMore) {
    showNames({"arrived", "finished", "refused or failed"});
    legend->setMostLines(1);
    for (const int width : {600, 400, 300, 240}) EXPECT_LE(heightAt({width, 400}), 20) << width;
    EXPECT_EQ(legend->shownNames({600, 400}), names);
    EXPECT_NE(legend->shownNames({240, 400}), names);
}

TEST_F(Legend, CutsANameThatIsLongerThanThePlotIsWide) {
    showNames({"NOSA on nosa-8b, 4 sequences of 16,385 tokens, KV cache in host memory"});
    EXPECT_EQ(legend->shownNames({900, 400}), names);
    const QString shown = legend->shownNames({300, 400}).front();
    EXPECT_TRUE(shown.startsWith("NOSA on")) << shown.toStdString();
    EXPECT_TRUE(shown.endsWith(QStringLiteral("…"))) << shown.toStdString();
    EXPECT_LE(heightAt({300, 400}), 20);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
