// The table of products of a process: the file in the user's cache folder, and what recorded runs say of theirs.
#include "core/session/products.h"

#include "base/error.h"
#include "tests/support/refusal.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <optional>
#include <string>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr ProductShape kShape{640, 384, ProductFinish::Normed};
constexpr ProductChoice kLib2{ProductKernel::Library, 2}, kTiles{ProductKernel::Tiles, 0};

/// With a cache folder of its own, and a GPU that no other test of the process asks for.
class Products : public ::testing::Test {
protected:
    Products() {
        std::string name = (fs::temp_directory_path() / "kvscope-products-XXXXXX").string();
        folder_ = mkdtemp(name.data());
        if (const char* before = std::getenv("XDG_CACHE_HOME")) before_ = before;
        setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
        static int tests = 0;
        machine.gpu = "GPU/ number " + std::to_string(++tests);
        setProductSource(ProductSource::Measured);
    }
    ~Products() override {
        before_ ? setenv("XDG_CACHE_HOME", before_->c_str(), 1) : unsetenv("XDG_CACHE_HOME");
        setProductSource(ProductSource::Measured);
        fs::remove_all(folder_);
    }
    /// 16 inputs of the shape are multiplied by the library's third proposal.
    ProductTable measured() const {
        const ProductTable own = ProductTable::builtIn(machine);
        return own.with({{kShape, measureProduct(own, kShape, 4, [](const ProductShape&, int n, ProductChoice choice) {
                              return n == 16 && choice == kLib2 ? 0.5 : 1.0;
                          })}});
    }
    ProductMachine machine{"", 90, 130100};

private:
    fs::path folder_;
    std::optional<std::string> before_;
};

TEST_F(Products, AreBuiltInUntilTheyAreMeasured) {
    const auto loaded = loadProducts(machine, ProductSource::Measured);
    EXPECT_EQ(loaded.table->choice(kShape, 16), kTiles);
    EXPECT_THAT(loaded.table->name(), StartsWith("built-in "));
    EXPECT_THAT(loaded.remark, IsEmpty());
}

TEST_F(Products, AreThoseOfTheFileOnceMeasured) {
    storeProducts(measured());
    const fs::path file = productFile(machine);
    EXPECT_THAT(file.string(), EndsWith("-sm90-cublaslt-130100.json"));
    EXPECT_EQ(file.filename().string().find('/'), std::string::npos);
    EXPECT_EQ(std::distance(fs::directory_iterator(file.parent_path()), {}), 1) << "nothing is left beside it";
    for (int start = 0; start < 3; ++start) {
        const auto loaded = loadProducts(machine, ProductSource::Measured);
        EXPECT_EQ(loaded.table->choice(kShape, 16), kLib2);
        EXPECT_EQ(loaded.table->name(), measured().name());
        EXPECT_THAT(loaded.remark, IsEmpty());
    }
    EXPECT_EQ(loadProducts(machine, ProductSource::BuiltIn).table->choice(kShape, 16), kTiles);
}

TEST_F(Products, OfADamagedOrForeignFileAreBuiltInAndSaySo) {
    storeProducts(measured());
    const std::string file = productFile(machine);
    const auto expectRemark = [&](const std::string& why) {
        const auto loaded = loadProducts(machine, ProductSource::Measured);
        EXPECT_THAT(loaded.table->name(), StartsWith("built-in "));
        EXPECT_THAT(loaded.remark, HasSubstr(why));
        EXPECT_THAT(loaded.remark, HasSubstr(file));
        EXPECT_EQ(loaded.remark.find('\n'), std::string::npos);
    };
    fs::resize_file(file, fs::file_size(file) / 2);
    expectRemark("not a JSON object");
    ProductMachine other = machine;
    other.gpu += " of another kind";
    std::ofstream(file) << ProductTable::builtIn(other).with(measured().measured()).text();
    expectRemark("another GPU");
    fs::resize_file(file, 2 << 20);
    expectRemark("too large");
    fs::remove(file);
    fs::create_directory(file);
    expectRemark("not a file");
}

TEST_F(Products, ThatCannotBeWrittenAreAnError) {
    const fs::path file = productFile(machine);
    std::ofstream(file.parent_path().parent_path()) << "a file where the folder would be";
    EXPECT_THAT(test::failureOf([&] { storeProducts(measured()); }), HasSubstr("cannot write " + file.string()));
    setenv("XDG_CACHE_HOME", "not-absolute", 1);
    const std::string home = std::getenv("HOME") != nullptr ? std::getenv("HOME") : "";
    unsetenv("HOME");
    EXPECT_THAT(productFile(machine), IsEmpty());
    EXPECT_THAT(test::failureOf([&] { storeProducts(measured()); }), HasSubstr("no folder"));
    EXPECT_EQ(loadProducts(machine, ProductSource::Measured).table->choice(kShape, 16), kTiles);
    if (!home.empty()) setenv("HOME", home.c_str(), 1);
}

TEST_F(Products, StayTheSameWhileAProcessRuns) {
    const auto first = productsOf(machine);
    storeProducts(measured());
    EXPECT_EQ(productsOf(machine), first) << "a session beside it may have begun";
    EXPECT_EQ(productsInUse(), first->name());
    EXPECT_THAT(productsRemark(), IsEmpty());
}

TEST_F(Products, FollowARecordedRunAndSayWhereTheyCannot) {
    storeProducts(measured());
    const std::string builtIn = ProductTable::builtIn(machine).name(), own = measured().name();
    takeProductsOf(builtIn);
    EXPECT_EQ(productsOf(machine)->name(), builtIn);
    EXPECT_THAT(unlikeProducts(builtIn), IsEmpty());
    EXPECT_THAT(unlikeProducts(own), AllOf(HasSubstr(own), HasSubstr(builtIn)));
    takeProductsOf(own);
    EXPECT_EQ(productsOf(machine)->name(), own);
    EXPECT_THAT(unlikeProducts(own), IsEmpty());
    EXPECT_THAT(unlikeProducts("measured 00000000"), HasSubstr("another table"));
    takeProductsOf("");
    EXPECT_EQ(productSource(), ProductSource::Measured) << "a run of an older version says nothing";
    EXPECT_THAT(unlikeProducts(""), IsEmpty());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
