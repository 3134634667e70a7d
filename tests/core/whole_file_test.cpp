// Files that appear when they are complete.
#include "core/model/whole_file.h"

#include "tests/profiler/temporary_folder.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <ostream>
#include <sstream>
#include <thread>
#include <vector>

namespace kvscope {
namespace {

std::string contents(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
}

std::size_t filesIn(const std::filesystem::path& folder) {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator(folder)) ++count;
    return count;
}

class WholeFiles : public testing::Test {
protected:
    test::Folder folder;
    const std::string path = (folder / "table.json").string();
};

TEST_F(WholeFiles, ReplaceWhatWasThere) {
    for (const char* text : {"first", "second"}) {
        EXPECT_EQ(writeWholeFile(path, [&](std::ostream& out) { out << text; }), "");
        EXPECT_EQ(contents(path), text);
    }
    EXPECT_EQ(filesIn(folder.path()), 1u);
}

TEST_F(WholeFiles, LeaveWhatWasThereWhenTheyFail) {
    ASSERT_EQ(writeWholeFile(path, [](std::ostream& out) { out << "kept"; }), "");
    EXPECT_EQ(writeWholeFile(path, [](std::ostream& out) { out.setstate(std::ios::badbit); }), "the disk may be full");
    EXPECT_THROW(writeWholeFile(path, [](std::ostream&) { throw std::runtime_error("given up"); }), std::runtime_error);
    EXPECT_EQ(contents(path), "kept");
    EXPECT_EQ(filesIn(folder.path()), 1u) << "nothing is left beside it";
    EXPECT_THAT(writeWholeFile(path + "/inside", [](std::ostream&) {}), testing::HasSubstr("irectory"));
    std::filesystem::create_directory(path + ".folder");
    EXPECT_NE(writeWholeFile(path + ".folder", [](std::ostream& out) { out << "no"; }), "");
}

TEST_F(WholeFiles, OfSeveralWritersOneWinsWhole) {
    std::vector<std::thread> writers;
    for (int i = 0; i < 8; ++i)
        writers.emplace_back([this, i] {
            writeWholeFile(path, [i](std::ostream& out) { out << std::string(100'000, char('a' + i)); });
        });
    for (std::thread& writer : writers) writer.join();
    const std::string text = contents(path);
    EXPECT_EQ(text, std::string(100'000, text.front()));
}

TEST_F(WholeFiles, TakeWhatSqliteLeavesBesideThemAlong) {
    {
        const WholeFile whole(path);
        for (const char* suffix : {"", "-wal", "-journal"}) std::ofstream(whole.aside() + suffix) << "x";
        EXPECT_NE(whole.aside().find(WholeFile::kMark), std::string::npos);
    }
    EXPECT_EQ(filesIn(folder.path()), 0u);
}

} // namespace
} // namespace kvscope
