// Names that a person types into a save dialog, and what they mean.
#include "ui/frame/save_path.h"

#include "profiler/export/gzip_stream.h"

#include <gtest/gtest.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class SavePath : public testing::Test {
protected:
    // CSV, JSON lines, CSV compressed, JSON lines compressed
    const std::vector<FileFormat> formats = numberFormats();
    std::string named(const char* typed, const char* suffix) {
        for (std::size_t i = 0; i < formats.size(); ++i)
            if (formats[i].suffix == QLatin1String(suffix))
                return completeName(QString::fromUtf8(typed), formats, i).toStdString();
        ADD_FAILURE() << suffix << " is not offered";
        return {};
    }
};

TEST_F(SavePath, TheSuffixThatWasTypedCounts) {
    EXPECT_EQ(named("/a/rows.csv", "csv"), "/a/rows.csv");
    EXPECT_EQ(named("/a/rows.jsonl", "csv"), "/a/rows.jsonl");
    EXPECT_EQ(named("/a/rows.CSV", "csv"), "/a/rows.CSV");
}

TEST_F(SavePath, ANameWithoutOneGetsTheFormatsThatWasPicked) {
    EXPECT_EQ(named("/a/rows", "csv"), "/a/rows.csv");
    EXPECT_EQ(named("/a/run.v2", "jsonl"), "/a/run.v2.jsonl") << "what a run is called has dots";
    EXPECT_EQ(named("/a/.csv", "csv"), "/a/.csv.csv") << "that is a hidden file's whole name";
}

TEST_F(SavePath, WhoPicksAnotherFormatMeansIt) { EXPECT_EQ(named("/a/rows.csv", "jsonl"), "/a/rows.jsonl"); }

TEST_F(SavePath, CompressedNamesSayWhatIsInThem) {
    if (!GzipStream::isAvailable()) GTEST_SKIP() << "built without zlib";
    EXPECT_EQ(named("/a/rows.csv", "csv.gz"), "/a/rows.csv.gz");
    EXPECT_EQ(named("/a/rows.csv.gz", "csv"), "/a/rows.csv.gz");
    EXPECT_EQ(named("/a/rows.gz", "csv.gz"), "/a/rows.csv.gz") << "what a dialog makes of the filter *.csv.gz";
    EXPECT_EQ(named("/a/rows.gz", "csv"), "/a/rows.csv.gz");
    EXPECT_EQ(named("/a/rows.csv.gz", "jsonl.gz"), "/a/rows.jsonl.gz");
    EXPECT_EQ(named("/a/rows.jsonl.gz", "csv"), "/a/rows.jsonl.gz");
}

TEST_F(SavePath, PicturesAreNotOfferedCompressed) {
    const std::vector<FileFormat> pictures = {{"PNG", "png"}, {"SVG", "svg"}};
    EXPECT_EQ(completeName("/a/x.png.gz", pictures, 0), "/a/x.png");
    EXPECT_EQ(completeName("/a/x.svg", pictures, 0), "/a/x.svg");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
