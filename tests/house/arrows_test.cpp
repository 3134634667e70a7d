// The rooms of the source tree include each other as cmake/arrows.txt says, and in no other way.
#include "tests/support/places.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;

struct Arrow {
    int line = 0;           // of the table
    bool exception = false; // should not be there
    bool used = false;      // some include takes it
};

struct ArrowTable {
    std::map<std::string, std::map<std::string, Arrow>> rooms; // [room][included room]
    std::vector<std::string> faults;                           // what is wrong with the table itself
};

ArrowTable readTable(std::istream& in, const std::string& name) {
    ArrowTable table;
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
        if (line.empty() || line.front() == '#') continue;
        const auto fault = [&](const std::string& what) {
            table.faults.push_back(fmt::format("{}:{}: {}", name, number, what));
        };
        const std::size_t colon = line.find(':');
        if (colon == std::string::npos) {
            fault("a line reads \"room: included rooms\"");
            continue;
        }
        std::istringstream left(line.substr(0, colon)), right(line.substr(colon + 1));
        std::string room, target;
        left >> room;
        const bool exception = room == "except";
        if (exception) left >> room;
        if (!exception && table.rooms.contains(room)) fault(room + " has a line already");
        if (exception && !table.rooms.contains(room)) fault(room + " has no line before its exceptions");
        auto& arrows = table.rooms[room];
        while (right >> target)
            if (!arrows.emplace(target, Arrow{number, exception}).second)
                fault(fmt::format("{} -> {} is there already", room, target));
    }
    for (const auto& [room, arrows] : table.rooms)
        for (const auto& [target, arrow] : arrows)
            if (!table.rooms.contains(target))
                table.faults.push_back(fmt::format("{}:{}: {} has no line of its own", name, arrow.line, target));
    return table;
}

/// A way from a room back to itself over arrows that are no exceptions, or nothing.
std::string findCircle(const ArrowTable& table) {
    std::map<std::string, int> state; // 1: on the way, 2: done
    std::vector<std::string> way;
    std::function<std::string(const std::string&)> visit = [&](const std::string& room) -> std::string {
        if (state[room] == 2) return {};
        way.push_back(room);
        if (state[room] == 1) {
            std::string circle;
            for (auto at = std::find(way.begin(), way.end(), room); at != way.end(); ++at)
                circle += (circle.empty() ? "" : " -> ") + *at;
            return circle;
        }
        state[room] = 1;
        const auto found = table.rooms.find(room);
        if (found != table.rooms.end())
            for (const auto& [target, arrow] : found->second)
                if (!arrow.exception)
                    if (std::string circle = visit(target); !circle.empty()) return circle;
        state[room] = 2;
        way.pop_back();
        return {};
    };
    for (const auto& entry : table.rooms)
        if (std::string circle = visit(entry.first); !circle.empty()) return circle;
    return {};
}

/// The path between the quotes of an #include "..." line, or nothing.
std::string includedPath(const std::string& line) {
    const auto skipBlanks = [&](std::size_t at) { return std::min(line.find_first_not_of(" \t", at), line.size()); };
    std::size_t at = skipBlanks(0);
    if (at == line.size() || line[at] != '#') return {};
    at = skipBlanks(at + 1);
    if (line.compare(at, 7, "include") != 0) return {};
    at = skipBlanks(at + 7);
    if (at == line.size() || line[at] != '"') return {};
    const std::size_t end = line.find('"', at + 1);
    return end == std::string::npos ? std::string() : line.substr(at + 1, end - at - 1);
}

/// Reads every source file below `floors` and says what breaks the table: "file:line: room may not include header".
/// Afterwards the table knows which arrows are used.
std::vector<std::string> breaches(const fs::path& root, const std::vector<std::string>& floors, ArrowTable& table) {
    std::vector<fs::path> files;
    const std::set<std::string> kinds{".h", ".cpp", ".cu", ".cuh", ".inc"};
    for (const std::string& floor : floors)
        for (const auto& entry : fs::recursive_directory_iterator(root / floor))
            if (entry.is_regular_file() && kinds.contains(entry.path().extension().string()))
                files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    std::vector<std::string> found;
    for (const fs::path& path : files) {
        const std::string file = path.lexically_relative(root).generic_string();
        const std::string room = fs::path(file).parent_path().generic_string();
        const auto arrows = table.rooms.find(room);
        if (arrows == table.rooms.end()) {
            found.push_back(fmt::format("{}: its room {} has no line in the table", file, room));
            continue;
        }
        std::ifstream in(path);
        std::string line;
        for (int number = 1; std::getline(in, line); ++number) {
            const std::string header = includedPath(line);
            if (header.empty() || !fs::exists(root / header)) continue; // made by the build, or a library's
            const std::string target = fs::path(header).parent_path().generic_string();
            if (target == room) continue;
            const auto arrow = arrows->second.find(target);
            if (arrow != arrows->second.end())
                arrow->second.used = true;
            else
                found.push_back(fmt::format("{}:{}: {} may not include {}", file, number, room, header));
        }
    }
    return found;
}

std::vector<std::string> unusedArrows(const ArrowTable& table, const std::string& name) {
    std::vector<std::string> unused;
    for (const auto& [room, arrows] : table.rooms)
        for (const auto& [target, arrow] : arrows)
            if (!arrow.used)
                unused.push_back(
                    fmt::format("{}:{}: no include goes from {} to {}: take it out", name, arrow.line, room, target));
    return unused;
}

std::string lines(const std::vector<std::string>& texts) {
    std::string all;
    for (const std::string& text : texts) all += "\n" + text;
    return all;
}

const std::vector<std::string> kFloors{"base", "kernels", "core", "profiler", "sdk", "ui"};

TEST(Arrows, EveryIncludeFollowsTheTableAndEveryArrowIsTaken) {
    const fs::path root = test::source("");
    std::ifstream in(root / "cmake/arrows.txt");
    ASSERT_TRUE(in) << "cmake/arrows.txt is missing";
    ArrowTable table = readTable(in, "cmake/arrows.txt");
    EXPECT_TRUE(table.faults.empty()) << lines(table.faults);
    EXPECT_EQ(findCircle(table), "") << "these rooms include each other in a circle";
    const auto broken = breaches(root, kFloors, table);
    EXPECT_TRUE(broken.empty()) << lines(broken);
    const auto unused = unusedArrows(table, "cmake/arrows.txt");
    EXPECT_TRUE(unused.empty()) << lines(unused);
}

/// A small tree with planted faults.
class ArrowsOfASmallHouse : public ::testing::Test {
protected:
    void SetUp() override {
        root_ = fs::temp_directory_path() / fmt::format("kvscope-arrows-{}", ::getpid());
        fs::remove_all(root_);
        write("core/a/one.h", "#pragma once\n");
        write("core/b/two.h", "#include \"core/a/one.h\"\n#include <vector>\n");
        write("core/b/two.cpp", "#include \"core/b/two.h\"\n#  include \"two.moc\"\n");
    }
    void TearDown() override { fs::remove_all(root_); }
    void write(const std::string& path, const std::string& text) const {
        fs::create_directories((root_ / path).parent_path());
        std::ofstream(root_ / path) << text;
    }
    ArrowTable table(const std::string& text) const {
        std::istringstream in(text);
        return readTable(in, "table");
    }
    std::vector<std::string> broken(ArrowTable& table) const { return breaches(root_, {"core"}, table); }

    fs::path root_;
};

TEST_F(ArrowsOfASmallHouse, AreFineWhereTheTableHasThem) {
    ArrowTable good = table("# rooms\n\ncore/a:\ncore/b: core/a\n");
    EXPECT_EQ(good.faults, std::vector<std::string>());
    EXPECT_EQ(broken(good), std::vector<std::string>());
    EXPECT_EQ(unusedArrows(good, "table"), std::vector<std::string>());
}

TEST_F(ArrowsOfASmallHouse, AnIncludeThatTheTableLacksIsNamedWithItsLine) {
    write("core/a/up.cpp", "\n// core/b\n # include \"core/b/two.h\"\n");
    ArrowTable lacking = table("core/a:\ncore/b: core/a\n");
    EXPECT_EQ(broken(lacking), std::vector<std::string>{"core/a/up.cpp:3: core/a may not include core/b/two.h"});
    ArrowTable excepted = table("core/a:\ncore/b: core/a\nexcept core/a: core/b\n");
    EXPECT_EQ(broken(excepted), std::vector<std::string>());
    EXPECT_EQ(findCircle(excepted), "");
}

TEST_F(ArrowsOfASmallHouse, AnArrowThatNoIncludeTakesIsNamed) {
    ArrowTable tooMuch = table("core/a:\ncore/c:\ncore/b: core/a core/c\n");
    EXPECT_EQ(broken(tooMuch), std::vector<std::string>());
    EXPECT_EQ(unusedArrows(tooMuch, "table"),
              std::vector<std::string>{"table:3: no include goes from core/b to core/c: take it out"});
}

TEST_F(ArrowsOfASmallHouse, ARoomWithoutALineIsNamed) {
    write("core/new/three.h", "");
    ArrowTable old = table("core/a:\ncore/b: core/a\n");
    EXPECT_EQ(broken(old), std::vector<std::string>{"core/new/three.h: its room core/new has no line in the table"});
}

TEST_F(ArrowsOfASmallHouse, ACircleIsFound) {
    EXPECT_EQ(findCircle(table("core/a: core/b\ncore/b: core/c\ncore/c: core/b\n")), "core/b -> core/c -> core/b");
}

TEST_F(ArrowsOfASmallHouse, ATableThatCannotBeReadSaysWhere) {
    EXPECT_EQ(table("core/a core/b\ncore/a: core/c\ncore/a:\nexcept core/d: core/a\n").faults,
              (std::vector<std::string>{
                  "table:1: a line reads \"room: included rooms\"", "table:3: core/a has a line already",
                  "table:4: core/d has no line before its exceptions", "table:2: core/c has no line of its own"}));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
