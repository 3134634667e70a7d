// The models that come with the program are files beside it: where they are looked for, and what is said without them.
#include "core/model/bundled_models.h"

#include "base/error.h"
#include "core/model/model.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;
using testing::HasSubstr;

class BundledModels : public testing::Test {
protected:
    BundledModels()
        : root_(fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name()) {
        fs::remove_all(root_);
    }
    ~BundledModels() override { fs::remove_all(root_); }
    fs::path putModel(const fs::path& place) {
        fs::create_directories(root_ / place / "tiny");
        std::ofstream(root_ / place / "tiny" / "config.json") << "{}";
        return root_ / place / "tiny";
    }
    const fs::path root_;
};

TEST_F(BundledModels, LieBesideTheProgramThenInItsShareFolderThenInTheSources) {
    const auto places = bundledModelPlaces(root_ / "bin/kvscope");
    ASSERT_EQ(places.size(), 3u);
    const fs::path installed = putModel("share/kvscope/models");
    EXPECT_EQ(fs::weakly_canonical(findBundledModel("tiny", places)), installed);
    const fs::path beside = putModel("bin/models");
    EXPECT_EQ(findBundledModel("tiny", places), beside);
    EXPECT_EQ(findBundledModel(kDefaultModel, places), places[2] / kDefaultModel);
}

TEST_F(BundledModels, MissingOnesAreNamedWithEveryPlaceAndTheMend) {
    const auto places = bundledModelPlaces(root_ / "bin/kvscope");
    try {
        findBundledModel("tiny", places);
        FAIL() << "it was found";
    } catch (const Error& error) {
        const std::string said = oneLine(error);
        EXPECT_THAT(said, HasSubstr("the model 'tiny' that comes with KVScope"));
        for (const fs::path& place : places) EXPECT_THAT(said, HasSubstr(place.string()));
        EXPECT_THAT(said, HasSubstr("copy the folder resources/models"));
    }
}

TEST_F(BundledModels, AreWhatTheirFolderHolds) {
    const fs::path folder = bundledModelFolder(kDefaultModel);
    const auto byName = Model::load(kDefaultModel), byFolder = Model::load(folder.string());
    EXPECT_TRUE(byName->embedded());
    EXPECT_FALSE(byFolder->embedded());
    EXPECT_EQ(byName->folder(), "") << "what is learned about it goes to a folder of the person's own";
    EXPECT_EQ(byName->fileBytes(), byFolder->fileBytes());
    EXPECT_EQ(byName->config().eosIds, byFolder->config().eosIds);
    const std::string text = "A cache of keys and values,\n 12 blocks long.";
    EXPECT_EQ(byName->tokenizer().encode(text), byFolder->tokenizer().encode(text));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
