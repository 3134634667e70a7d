// Where the facts of a needle prompt lie among the ids that a model reads.
#include "core/model/model.h"
#include "core/prompt/prompts.h"
#include "tests/core/embedded_model.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

TEST(NeedlePlaces, HoldTheSentencesOfTheFacts) {
    KVSCOPE_NEEDS_NOSA_TINY();
    const auto model = Model::load(kDefaultModel);
    const Tokenizer& tokenizer = model->tokenizer();
    for (const double depth : {0.0, 0.3, 1.0}) {
        SCOPED_TRACE(depth);
        const NeedlePrompt prompt = makeNeedlePrompt(tokenizer, {.tokens = 1500, .needles = 5, .depth = depth});
        const auto ids = tokenizer.encode(prompt.text);
        const auto places = placesOf(tokenizer, ids, prompt, 2);
        ASSERT_EQ(places.size(), 5U);
        int asked = 0;
        for (const NeedlePlace& place : places) {
            EXPECT_EQ(place.sequence, 2);
            const std::vector<std::int32_t> tokens(ids.begin() + place.first, ids.begin() + place.first + place.tokens);
            const std::string text = tokenizer.decode(tokens);
            EXPECT_THAT(text, testing::HasSubstr("The magic number for " + place.name + " is " + place.value + "."));
            EXPECT_LT(text.size(), place.name.size() + 60) << "no more than the sentence and parts of its neighbours";
            asked += place.asked;
            if (!place.asked) continue;
            EXPECT_EQ(place.value, prompt.answer);
            EXPECT_EQ(place.first, prompt.needleToken);
        }
        EXPECT_EQ(asked, 1);
        EXPECT_TRUE(std::is_sorted(places.begin(), places.end(),
                                   [](const NeedlePlace& a, const NeedlePlace& b) { return a.first < b.first; }));
    }
}

TEST(NeedlePlaces, ArePassedOverWhereTheTextIsAnother) {
    KVSCOPE_NEEDS_NOSA_TINY();
    const auto model = Model::load(kDefaultModel);
    const NeedlePrompt prompt = makeNeedlePrompt(model->tokenizer(), {.tokens = 600, .needles = 2});
    EXPECT_TRUE(placesOf(model->tokenizer(), model->tokenizer().encode("Another text."), prompt, 0).empty());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
