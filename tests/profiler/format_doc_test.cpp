// docs/trace-format.md describes the schema that is compiled in: every table and view, every column, in order.
#include "profiler/export/export.h"
#include "profiler/read/trace_reader.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/places.h"

#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <sstream>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Columns = std::vector<std::pair<std::string, std::string>>; // name, type

std::string document() {
    std::ifstream file(test::source("docs/trace-format.md"));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

/// Sections "### `name`" and the tables of columns in them.
std::map<std::string, Columns> documentedColumns() {
    std::map<std::string, Columns> sections;
    std::istringstream lines(document());
    Columns* current = nullptr;
    for (std::string line; std::getline(lines, line);) {
        if (line.rfind("### `", 0) == 0)
            current = &sections[line.substr(5, line.find('`', 5) - 5)];
        else if (line.rfind("#", 0) == 0)
            current = nullptr;
        else if (current && line.rfind("| `", 0) == 0) {
            const std::size_t end = line.find('`', 3), type = line.find("| ", end) + 2;
            current->emplace_back(line.substr(3, end - 3), line.substr(type, line.find(' ', type) - type));
        }
    }
    return sections;
}

TEST(TraceFormatDocument, NamesEveryTableAndViewWithItsColumnsInOrder) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {});
    const auto documented = documentedColumns();
    const auto objects = test::sql(file, "SELECT name, type FROM sqlite_schema WHERE type IN ('table', 'view')").rows;
    for (const auto& object : objects) {
        ASSERT_TRUE(documented.count(object[0])) << object[0] << " is not documented";
        Columns actual;
        for (const auto& row :
             test::sql(file, "SELECT name, lower(type) FROM pragma_table_info('" + object[0] + "')").rows)
            actual.emplace_back(row[0], row[1]);
        const Columns& said = documented.at(object[0]);
        ASSERT_EQ(said.size(), actual.size()) << object[0];
        for (std::size_t i = 0; i < said.size(); ++i) {
            EXPECT_EQ(said[i].first, actual[i].first) << object[0];
            // Computed columns of views have no declared type.
            if (object[1] == "table") {
                EXPECT_EQ(said[i].second, actual[i].second) << object[0] << "." << said[i].first;
            }
        }
    }
    EXPECT_EQ(documented.size(), objects.size()) << "something is documented that the schema does not have";
}

TEST(TraceFormatDocument, GivesAnExampleInPythonThatWeRead) {
    if (std::system("python3 -c 'import sqlite3' > /dev/null 2>&1") != 0)
        GTEST_SKIP() << "python3 with sqlite3 is not installed";
    const std::string text = document();
    const std::size_t begin = text.find("```python\n") + 10, end = text.find("```", begin);
    ASSERT_LT(end, text.size());
    test::Folder folder;
    std::ofstream(folder / "example.py") << text.substr(begin, end - begin);
    std::filesystem::create_directories(folder / "resources/sql");
    std::filesystem::copy_file(test::source("resources/sql/schema.sql"), folder / "resources/sql/schema.sql");
    ASSERT_EQ(std::system(("cd '" + folder.path().string() + "' && python3 example.py").c_str()), 0);
    const std::string file = (folder / "mine.kvtrace").string();
    TraceReader reader(file);
    EXPECT_EQ(reader.run(1)->method, "my-method");
    EXPECT_EQ(reader.steps(1).size(), 1u);
    const auto row = reader.selection(1, 1, 0, 0, 0);
    ASSERT_TRUE(row.has_value());
    EXPECT_EQ(row->blocks, (std::vector<PackedBlock>{
                               {0, Origin::Sink, true}, {7, Origin::QueryAware, false}, {8, Origin::Window, true}}));
    EXPECT_EQ(test::value(file, "SELECT sum(total_ns) FROM v_breakdown"), "900000");
    EXPECT_EQ(test::value(file, "SELECT mechanism FROM v_transfer"), "block copy, measured link");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
