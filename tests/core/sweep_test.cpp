// The runs of a sweep, as the command line and the desktop make them, and what a rehearsed session refuses.
#include "core/session/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class Sweep : public testing::Test {
protected:
    static std::shared_ptr<const Model> model() {
        static const std::shared_ptr<const Model> loaded = Model::load(kDefaultModel);
        return loaded;
    }
    static std::vector<SweepPoint> pointsOf(const SweepRequest& request) {
        return sweepPoints(request, model()->config());
    }
    template <class Act> static std::string refusalOf(Act&& act) {
        try {
            act();
        } catch (const Error& error) {
            return oneLine(error);
        }
        return "not refused";
    }
};

TEST_F(Sweep, WhatHasNoEffectWithoutADeviceTierMakesNoRunOfItsOwn) {
    SweepRequest request;
    request.axes = {sweepAxis("offload", "on,off"), sweepAxis("device-kv", "20,24"), sweepAxis("k", "16")};
    request.base.cachePolicy = "lru";
    const auto points = pointsOf(request);
    ASSERT_EQ(points.size(), 3u);
    EXPECT_THAT(points[0].varied,
                ElementsAre(Pair("offload", "on"), Pair("device-kv", "20"), Pair("total_blocks", "16")));
    EXPECT_EQ(points[1].options.deviceKvBlocks, 24);
    EXPECT_THAT(points[2].varied, ElementsAre(Pair("offload", "off"), Pair("total_blocks", "16")));
    EXPECT_FALSE(points[2].options.offload);
    EXPECT_FALSE(points[2].options.deviceKvBlocks);
    EXPECT_THAT(points[2].options.cachePolicy, IsEmpty()) << "no block is replaced";
}

TEST_F(Sweep, ValuesOfTheCallerMakeRunsAndAreLeftToIt) {
    SweepRequest request;
    request.axes = {sweepAxis("sequences", "1,4"), sweepAxis("method", "nosa,streaming")};
    request.ofCaller = {"sequences"};
    const auto points = pointsOf(request);
    ASSERT_EQ(points.size(), 4u);
    EXPECT_THAT(points[3].varied, ElementsAre(Pair("sequences", "4"), Pair("method", "streaming")));
    EXPECT_THAT(points[3].options.settings, IsEmpty());
}

TEST_F(Sweep, NonsenseIsRefusedBeforeAnythingIsMade) {
    const auto refused = [](const std::vector<SweepAxis>& axes) {
        return refusalOf([&] { pointsOf({axes, {}, {}, {}}); });
    };
    EXPECT_THAT(refused({sweepAxis("offload", "maybe")}), HasSubstr("on or off"));
    EXPECT_THAT(refused({sweepAxis("offload", "on,on")}), HasSubstr("names on twice"));
    EXPECT_THAT(refused({sweepAxis("k", "8"), sweepAxis("total_blocks", "9")}), HasSubstr("'total_blocks' twice"));
    EXPECT_THAT(refused({{"seed", std::vector<std::string>(20'000, "1")}}), HasSubstr("names 1 twice"));
    SweepAxis many{"max-new-tokens", {}}, more{"total_blocks", {}};
    for (int i = 1; i <= 101; ++i) {
        many.values.push_back(std::to_string(i));
        more.values.push_back(std::to_string(i));
    }
    EXPECT_THAT(refused({many, more}), HasSubstr("10201 combinations"));
}

TEST_F(Sweep, ARehearsalSaysWhatTheSessionWouldFailWith) {
    SessionOptions options;
    EXPECT_EQ(refusalOf([&] { rehearseSession(model(), options, 700, 2); }), "not refused");
    options.deviceKvBlocks = 1;
    options.maxNewTokens = 4;
    const std::vector<std::vector<std::int32_t>> prompts{std::vector<std::int32_t>(700, 5)};
    NullSink sink;
    EXPECT_EQ(refusalOf([&] { rehearseSession(model(), options, 700, 1); }),
              refusalOf([&] { DecodeSession(model(), prompts, options, sink); }));
    options.deviceKvBlocks.reset();
    EXPECT_THAT(refusalOf([&] { rehearseSession(model(), options, model()->config().maxPositions, 1); }),
                HasSubstr(std::to_string(model()->config().maxPositions)));
    EXPECT_TRUE(hasDeviceTier(*model(), options));
    options.method = "full";
    EXPECT_FALSE(hasDeviceTier(*model(), options));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
