#include "base/error.h"
#include "profiler/import/spill_sorter.h"
#include "tests/profiler/temporary_folder.h"

#include <gtest/gtest.h>
#include <random>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

struct Record {
    std::int64_t key;
    std::int64_t sequence;
    bool operator<(const Record& other) const { return key != other.key ? key < other.key : sequence < other.sequence; }
    bool operator==(const Record& other) const = default;
};

TEST(SpillSorter, SortsMoreThanItHoldsLikeOneThatHoldsAll) {
    test::Folder folder;
    for (const std::size_t atOnce : {std::size_t(1), std::size_t(7), std::size_t(1000), std::size_t(50'000)}) {
        SpillSorter<Record> sorter(folder.path().string(), atOnce);
        std::vector<Record> expected, seen;
        std::mt19937_64 random(atOnce);
        const std::int64_t count = atOnce == 1 ? 300 : 20'000;
        for (std::int64_t i = 0; i < count; ++i) {
            const Record record{std::int64_t(random() % 5000), i}; // many equal keys
            sorter.add(record);
            expected.push_back(record);
        }
        EXPECT_EQ(sorter.count(), count);
        sorter.drain([&](const Record& record) { seen.push_back(record); });
        std::sort(expected.begin(), expected.end());
        EXPECT_TRUE(seen == expected) << "in runs of " << atOnce;
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "its file has no name";
}

TEST(SpillSorter, EmptyIsNothing) {
    test::Folder folder;
    SpillSorter<Record> sorter(folder.path().string());
    sorter.drain([](const Record&) { FAIL(); });
}

TEST(SpillSorter, SaysWhereItCannotWrite) {
    SpillSorter<Record> sorter("/no/such/folder", 1);
    EXPECT_THROW(sorter.add({1, 1}), Error);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
