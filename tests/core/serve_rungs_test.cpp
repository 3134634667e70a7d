// The ladder's configurations, and the search for a capacity as a function of the answers it gets.
#include "core/serve/rungs.h"

#include "base/error.h"
#include "core/serve/capacity.h"

#include <cmath>
#include <gmock/gmock.h>
#include <set>

namespace kvscope::serve {
namespace KVSCOPE_TEST_FILE {

using ::testing::HasSubstr;

int differences(const SchedulerOptions& a, const SchedulerOptions& b) {
    return int(a.offload != b.offload) + int(a.cache != b.cache) + int(a.transfers != b.transfers) +
           int(a.workingSetControl != b.workingSetControl) + int(a.prefill != b.prefill);
}

TEST(Rungs, EachOneAddsOneThing) {
    ASSERT_EQ(rungs().size(), 7u);
    for (std::size_t i = 1; i < rungs().size(); ++i) {
        const Rung &before = rungs()[i - 1], &rung = rungs()[i];
        EXPECT_EQ(differences(onRung(before, {}), onRung(rung, {})) + int(before.sparse != rung.sparse), 1)
            << rung.name;
    }
    SchedulerOptions own;
    own.window = 3, own.rows = 7;
    EXPECT_EQ(onRung(rungs().back(), own).window, 3);
    EXPECT_EQ(onRung(rungs().back(), own).rows, 7);
}

TEST(Rungs, DecideTheKnobsThatTheyName) {
    const std::vector<Parameter>& all = schedulerParameters();
    for (const std::string& key : knobsOfRungs())
        EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const Parameter& p) { return p.key == key; })) << key;
}

TEST(Rungs, FullAttentionReadsEverythingAndHasNoIndex) {
    ServiceCosts sparse;
    sparse.decodeUsPerKtoken = 1, sparse.fullUsPerKtoken = 50;
    const ServiceCosts full = costsOnRung(rungs().front(), sparse);
    EXPECT_NEAR(full.residentDecode(1, 1'000'000) - sparse.residentDecode(1, 1'000'000), 49, 1e-9);
    EXPECT_EQ(full.shape.indexBytesPerToken, 0);
    EXPECT_EQ(costsOnRung(rungs()[1], sparse).toJson(), sparse.toJson());
    EXPECT_EQ(ServiceCosts::fromJson(sparse.toJson()).fullUsPerKtoken, 50);
}

TEST(Rungs, AreFoundByNameInTheOrderOfTheLadder) {
    const std::vector<Rung> some = rungsNamed("+layers,full");
    ASSERT_EQ(some.size(), 2u);
    EXPECT_STREQ(some[0].name, "full");
    EXPECT_STREQ(some[1].name, "+layers");
    EXPECT_EQ(rungsNamed("all").size(), rungs().size());
    for (const char* wrong : {"", "fast", "full,,+layers"}) {
        try {
            rungsNamed(wrong);
            ADD_FAILURE() << wrong;
        } catch (const Error& error) {
            EXPECT_THAT(oneLine(error), HasSubstr("no rung is named"));
            EXPECT_THAT(oneLine(error), HasSubstr("+partition"));
        }
    }
}

/// What a server holds whose capacity is `limit`.
Capacity searched(double first, double limit, double tolerance) {
    return searchCapacity(first, tolerance, [&](double rate) {
        return CapacityPoint{rate, rate <= limit ? "" : "too much", {}};
    });
}

TEST(SearchCapacity, FindsTheLimitFromAboveAndFromBelow) {
    for (const double limit : {0.03, 0.9, 1.0, 77.0})
        for (const double first : {0.1, 1.0, 20.0}) {
            const Capacity found = searched(first, limit, 0.02);
            EXPECT_LE(found.rate, limit);
            EXPECT_GE(found.rate * 1.02, limit) << first;
            EXPECT_EQ(found.broken, "too much");
            std::set<double> rates;
            for (const CapacityPoint& point : found.points) rates.insert(point.rate);
            EXPECT_EQ(rates.size(), found.points.size()) << "no rate is tried twice";
        }
}

TEST(SearchCapacity, EndsWhereNoRateHoldsAndWhereEveryRateDoes) {
    EXPECT_EQ(searched(1, -1, 0.02).rate, 0);
    EXPECT_LE(searched(1, -1, 0.02).points.size(), 40u);
    EXPECT_GT(searched(1, 1e300, 0.02).rate, 1e6);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::serve
