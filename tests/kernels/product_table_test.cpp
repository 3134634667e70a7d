// The table that chooses a product's kernel: its rule, its rows, its text, and what it takes from measured times.
#include "kernels/product_table.h"

#include "base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr ProductChoice kOne{ProductKernel::OneInput, 0}, kRows{ProductKernel::FewRows, 0},
    kTiles{ProductKernel::Tiles, 0}, kOwn{ProductKernel::ManyInputs, 0}, kLib{ProductKernel::Library, 0},
    kLib3{ProductKernel::Library, 3};
constexpr ProductShape kShape{640, 384, ProductFinish::Normed};

ProductMachine withLibrary() { return {"A GPU", 90, 130100}; }

/// Every choice takes as long as its place in possibleChoices says, but one is the fastest for some inputs.
ProductTable::Choices timed(const ProductTable& table, double favoured, ProductChoice which, int inputs) {
    return measureProduct(table, kShape, 4, [&](const ProductShape&, int n, ProductChoice choice) {
        return n == inputs && choice == which ? favoured : 1.0;
    });
}

TEST(ProductTable, GoesByTheNumberOfInputsForShapesThatNobodyMeasured) {
    const ProductTable table = ProductTable::builtIn(withLibrary());
    for (const auto& [n, choice] : {std::pair{1, kOne},
                                    {2, kRows},
                                    {8, kRows},
                                    {9, kTiles},
                                    {16, kTiles},
                                    {17, kLib},
                                    {256, kLib},
                                    {257, kLib},
                                    {4096, kLib}})
        EXPECT_EQ(table.choice(kShape, n), choice) << n;
    EXPECT_EQ(ProductTable::builtIn({"A GPU", 90, 0}).choice(kShape, 17), kOwn) << "no library";
}

TEST(ProductTable, SharesChoicesWithTheNextNumberThatIsMeasured) {
    for (const auto& [n, shared] : {std::pair{1, 1},
                                    {3, 4},
                                    {9, 12},
                                    {16, 16},
                                    {17, 24},
                                    {65, 96},
                                    {256, 256},
                                    {257, 512},
                                    {513, 768},
                                    {4096, 4096}})
        EXPECT_EQ(proposedInputs(n), shared) << n;
    EXPECT_EQ(productBucket(17), 6u);
    EXPECT_FALSE(productBucket(257));
}

TEST(ProductTable, TakesCompiledInRowsForTheirGpuAlone) {
    const ProductShape down{4096, 16384, ProductFinish::Plain};
    EXPECT_EQ(ProductTable::builtIn({"NVIDIA H200", 90, 130100}).choice(down, 16), kLib);
    EXPECT_EQ(ProductTable::builtIn({"NVIDIA H200", 90, 0}).choice(down, 16), kTiles) << "no library";
    EXPECT_EQ(ProductTable::builtIn({"NVIDIA A100", 80, 130100}).choice(down, 16), kTiles);
}

TEST(ProductTable, TakesWhatIsFasterByMoreThanNoise) {
    const ProductTable table = ProductTable::builtIn(withLibrary());
    EXPECT_EQ(timed(table, 0.97, kLib3, 16)[5], kLib3);
    EXPECT_EQ(timed(table, 0.99, kLib3, 16)[5], kTiles) << "1 % is noise";
    EXPECT_EQ(timed(table, 0.5, kLib3, 16)[4], kTiles) << "another number of inputs";
    EXPECT_EQ(timed(table, 0.5, kTiles, 4)[2], kTiles) << "tiles take few inputs, too";
}

TEST(ProductTable, MeasuresWhatCanMultiplyAndLeavesOutWhatCannot) {
    EXPECT_THAT(possibleChoices(withLibrary(), 1, 1), ElementsAre(kOne, kRows, kTiles, kLib));
    EXPECT_THAT(possibleChoices(withLibrary(), 17, 2), ElementsAre(kLib, ProductChoice{ProductKernel::Library, 1}));
    EXPECT_THAT(possibleChoices({"A GPU", 90, 0}, 9, 4), ElementsAre(kTiles));
    EXPECT_THAT(possibleChoices({"A GPU", 90, 0}, 17, 4), ElementsAre(kOwn));
    const double never = std::numeric_limits<double>::infinity();
    const ProductTable table = ProductTable::builtIn(withLibrary());
    const auto all = measureProduct(table, kShape, 4, [&](const ProductShape&, int, ProductChoice choice) {
        return choice.kernel == ProductKernel::Tiles ? never : 1.0; // a GPU with too little shared memory
    });
    EXPECT_EQ(all[5], kLib) << "the rule's own choice cannot be computed";
    const auto none = measureProduct(table, kShape, 4, [&](const ProductShape&, int, ProductChoice) { return never; });
    EXPECT_EQ(none[5], kTiles) << "nothing was measured";
}

TEST(ProductTable, StopsMeasuring) {
    std::stop_source stop;
    int asked = 0;
    EXPECT_THROW(measureProduct(
                     ProductTable::builtIn(withLibrary()), kShape, 4,
                     [&](const ProductShape&, int, ProductChoice) {
                         if (++asked == 3) stop.request_stop();
                         return 1.0;
                     },
                     stop.get_token()),
                 Error);
    EXPECT_EQ(asked, 3);
}

TEST(ProductTable, IsReadAsItWasWritten) {
    const ProductTable own = ProductTable::builtIn(withLibrary());
    const ProductTable table =
        own.with({{kShape, timed(own, 0.5, kLib3, 17 + 7)}, {{4, 96, ProductFinish::Gated}, timed(own, 0.5, kLib, 2)}});
    const auto read = ProductTable::read(table.text(), withLibrary());
    ASSERT_TRUE(read.table) << read.problem;
    EXPECT_EQ(read.table->measured(), table.measured());
    EXPECT_EQ(read.table->choice(kShape, 17), kLib3);
    EXPECT_EQ(read.table->name(), table.name());
    EXPECT_EQ(read.table->text(), table.text());
}

TEST(ProductTable, HasANameThatSaysWhetherTwoChooseAlike) {
    const ProductTable own = ProductTable::builtIn(withLibrary());
    EXPECT_THAT(own.name(), StartsWith("built-in "));
    EXPECT_EQ(own.name(), ProductTable::builtIn(withLibrary()).name());
    EXPECT_NE(own.name(), ProductTable::builtIn({"A GPU", 90, 130200}).name()) << "its proposals may be others";
    const ProductTable one = own.with({{kShape, timed(own, 0.5, kLib3, 16)}}),
                       other = own.with({{kShape, timed(own, 0.5, kLib, 16)}});
    EXPECT_THAT(one.name(), StartsWith("measured "));
    EXPECT_NE(one.name(), other.name());
    EXPECT_EQ(one.with(other.measured()).name(), other.name()) << "a later row takes the place of an earlier one";
}

TEST(ProductTable, RefusesTextsOfAnotherMachineAndDamagedOnes) {
    const ProductTable own = ProductTable::builtIn(withLibrary());
    const std::string text = own.with({{kShape, timed(own, 0.5, kLib3, 16)}}).text();
    const auto problem = [&](const std::string& read, const ProductMachine& machine) {
        const auto got = ProductTable::read(read, machine);
        EXPECT_FALSE(got.table);
        return got.problem;
    };
    const auto changed = [&](const std::string& from, const std::string& to) {
        std::string out = text;
        const std::size_t at = out.find(from);
        EXPECT_NE(at, std::string::npos) << from;
        return out.replace(at, from.size(), to);
    };
    EXPECT_THAT(problem(text, {"Another GPU", 90, 130100}), HasSubstr("another GPU, \"A GPU\""));
    EXPECT_THAT(problem(text, {"A GPU", 80, 130100}), HasSubstr("another GPU"));
    EXPECT_THAT(problem(text, {"A GPU", 90, 130200}), HasSubstr("another cuBLASLt, 130100"));
    EXPECT_THAT(problem("", withLibrary()), HasSubstr("not a JSON object"));
    EXPECT_THAT(problem(text.substr(0, text.size() / 2), withLibrary()), HasSubstr("not a JSON object"));
    EXPECT_THAT(problem("[]", withLibrary()), HasSubstr("not a JSON object"));
    EXPECT_THAT(problem(changed("\"products\": 1", "\"products\": 2"), withLibrary()), HasSubstr("another version"));
    EXPECT_THAT(problem(changed("lib3", "lib16"), withLibrary()), HasSubstr("a choice that is none"));
    EXPECT_THAT(problem(changed("lib3", "rows"), withLibrary()), HasSubstr("a choice that is none"))
        << "16 inputs are more than that kernel takes";
    EXPECT_THAT(problem(changed("\"rows\": 640", "\"rows\": -1"), withLibrary()), HasSubstr("a choice that is none"));
    EXPECT_THAT(problem(changed("normed", "norm"), withLibrary()), HasSubstr("a choice that is none"));
}

TEST(ProductTable, ReadsWordsAsItWritesThem) {
    for (const ProductChoice choice : {kOne, kRows, kTiles, kOwn, kLib, kLib3})
        EXPECT_EQ(choiceOf(wordOf(choice)), choice);
    for (const char* word : {"", "li", "lib0", "lib16", "lib-1", "lib3x", "row"}) EXPECT_FALSE(choiceOf(word)) << word;
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
