// Built-in prompts: their length, the place of the needle, and that a seed always gives the same text.
#include "core/prompt/prompts.h"

#include "base/error.h"
#include "core/session/decode_session.h"
#include "tests/support/places.h"

#include <cmath>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using testing::HasSubstr;

const Tokenizer& tokenizer() {
    static const Tokenizer tokenizer = [] {
        const std::string path = test::source("resources/models/nosa-tiny/tokenizer.json");
        std::ifstream file(path, std::ios::binary);
        return Tokenizer(std::string(std::istreambuf_iterator<char>(file), {}), path);
    }();
    return tokenizer;
}

int tokensOf(const std::string& text) { return int(tokenizer().encode(text).size()); }

std::string refusalOf(const NeedleOptions& options) {
    try {
        makeNeedlePrompt(tokenizer(), options);
        return {};
    } catch (const Error& error) {
        EXPECT_EQ(error.kind, ErrorKind::BadInput);
        EXPECT_EQ(oneLine(error).find('\n'), std::string::npos);
        return oneLine(error);
    }
}

TEST(SplicedPrompts, HaveTheLengthAskedForAndAreNeverAlike) {
    const auto model = Model::load(kDefaultModel);
    const SplicedPrompts prompts(*model);
    std::set<std::vector<std::int32_t>> seen;
    for (const int tokens : {1, 7, 64, 900, 5000})
        for (int number = 0; number < 4; ++number) {
            const std::vector<std::int32_t> ids = prompts.prompt(tokens, number, 3);
            EXPECT_EQ(int(ids.size()), tokens);
            EXPECT_EQ(ids, SplicedPrompts(*model).prompt(tokens, number, 3));
            if (tokens >= 64) {
                EXPECT_TRUE(seen.insert(ids).second);
                EXPECT_NE(ids, prompts.prompt(tokens, number, 4));
                EXPECT_THAT(model->tokenizer().decode(ids), HasSubstr("Request " + std::to_string(number)));
            }
        }
    EXPECT_THROW(prompts.prompt(0, 0, 0), Error);
}

TEST(NeedlePrompt, HasTheLengthAskedForAtEverySize) {
    for (const int tokens : {100, 137, 200, 333, 500, 1000, 1024, 2048, 3000, 4097, 6000, 9000, 12'345, 16'000})
        for (const std::uint64_t seed : {1, 2, 99}) {
            const auto prompt = makeNeedlePrompt(tokenizer(), {.tokens = tokens, .needles = 2, .seed = seed});
            EXPECT_LE(tokensOf(prompt.text), tokens) << "seed " << seed;
            EXPECT_GE(tokensOf(prompt.text), tokens - 6) << "seed " << seed;
        }
}

TEST(NeedlePrompt, HasTheLengthAskedForAtEveryDepthAndNumberOfNeedles) {
    for (const double depth : {0.0, 0.01, 0.25, 0.5, 0.77, 0.99, 1.0})
        for (const int needles : {1, 3, 8, 30}) {
            const auto prompt = makeNeedlePrompt(tokenizer(), {.tokens = 3000, .needles = needles, .depth = depth});
            EXPECT_LE(tokensOf(prompt.text), 3000) << depth << ", " << needles << " needles";
            EXPECT_GE(tokensOf(prompt.text), 3000 - 6) << depth << ", " << needles << " needles";
        }
}

TEST(NeedlePrompt, HidesTheNeedleAtItsDepth) {
    for (const int tokens : {1500, 3000, 9000, 16'000})
        for (const double depth : {0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0})
            for (const std::uint64_t seed : {1, 5}) {
                const auto prompt = makeNeedlePrompt(
                    tokenizer(), {.tokens = tokens, .needles = tokens < 3000 ? 1 : 4, .depth = depth, .seed = seed});
                // The question stands behind the text and the facts have their own length, hence 60 tokens more
                EXPECT_NEAR(prompt.needleToken, depth * tokens, 0.01 * tokens + 60) << "depth " << depth;
            }
}

TEST(NeedlePrompt, PointsAtTheNeedlesFirstToken) {
    for (const double depth : {0.0, 0.3, 0.6, 1.0})
        for (const int needles : {1, 5}) {
            const auto prompt =
                makeNeedlePrompt(tokenizer(), {.tokens = 2000, .needles = needles, .depth = depth, .seed = 3});
            const auto ids = tokenizer().encode(prompt.text);
            ASSERT_LT(std::size_t(prompt.needleToken), ids.size());
            const std::string name = prompt.question.substr(prompt.question.rfind("for ") + 4); // "... is "
            EXPECT_TRUE(tokenizer()
                            .decode({ids.begin() + prompt.needleToken, ids.end()})
                            .starts_with("The magic number for " + name + prompt.answer + ".\n"))
                << depth;
        }
}

TEST(NeedlePrompt, HasNothingBeforeAFactAtDepthZeroAndNothingBehindOneAtDepthOne) {
    const auto first = makeNeedlePrompt(tokenizer(), {.tokens = 1000, .needles = 1, .depth = 0, .seed = 3});
    EXPECT_TRUE(first.text.starts_with("\nThe magic number for "));
    const auto last = makeNeedlePrompt(tokenizer(), {.tokens = 1000, .needles = 1, .depth = 1, .seed = 3});
    EXPECT_TRUE(last.text.ends_with(last.answer + ".\n" + last.question));
}

TEST(NeedlePrompt, EndsWithItsQuestionAndHoldsTheAnswerOnceBefore) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        const auto prompt = makeNeedlePrompt(tokenizer(), {.tokens = 1500, .seed = seed});
        EXPECT_TRUE(prompt.text.ends_with(prompt.question)) << seed;
        EXPECT_EQ(prompt.answer.size(), 5u);
        EXPECT_EQ(prompt.answer.find_first_not_of("0123456789"), std::string::npos);
        const std::size_t place = prompt.text.find(prompt.answer);
        ASSERT_NE(place, std::string::npos) << seed;
        EXPECT_LT(place, prompt.text.size() - prompt.question.size()) << seed;
        EXPECT_EQ(prompt.text.find(prompt.answer, place + 1), std::string::npos) << seed;
        // The fact and the question speak of the same thing
        const std::size_t named = prompt.question.find("magic number for ") + 17;
        const std::string name = prompt.question.substr(named, prompt.question.find('?') - named);
        EXPECT_THAT(prompt.text, HasSubstr("The magic number for " + name + " is " + prompt.answer + "."));
    }
}

TEST(NeedlePrompt, HidesAsManyFactsAsAskedForUnderDifferentNamesAndNumbers) {
    const auto prompt = makeNeedlePrompt(tokenizer(), {.tokens = 16'000, .needles = 100, .seed = 5});
    const std::string lead = "\nThe magic number for ", middle = " is ";
    std::set<std::string> names, numbers;
    int facts = 0;
    for (std::size_t at = 0; (at = prompt.text.find(lead, at)) != std::string::npos; ++facts) {
        at += lead.size();
        const std::size_t number = prompt.text.find(middle, at) + middle.size();
        names.insert(prompt.text.substr(at, number - middle.size() - at));
        numbers.insert(prompt.text.substr(number, 5));
        EXPECT_EQ(prompt.text.substr(number, 5).find_first_not_of("0123456789"), std::string::npos);
        EXPECT_EQ(prompt.text.substr(number + 5, 2), ".\n");
    }
    EXPECT_EQ(facts, 100);
    EXPECT_EQ(names.size(), 100u);
    EXPECT_EQ(numbers.size(), 100u);
}

TEST(NeedlePrompt, IsTheSameForTheSameSeedOnly) {
    const NeedleOptions options{.tokens = 1200, .seed = 42};
    const auto first = makeNeedlePrompt(tokenizer(), options), again = makeNeedlePrompt(tokenizer(), options);
    EXPECT_EQ(first.text, again.text);
    EXPECT_EQ(first.answer, again.answer);
    EXPECT_EQ(first.needleToken, again.needleToken);
    NeedleOptions changed = options;
    changed.seed = 43;
    const auto other = makeNeedlePrompt(tokenizer(), changed);
    EXPECT_NE(first.text, other.text);
    EXPECT_NE(first.answer, other.answer);
}

TEST(NeedlePrompt, RefusesWhatDoesNotFit) {
    for (const int tokens : {INT32_MIN, -1, 0, 1, 2, 10, 30, INT32_MAX})
        EXPECT_THAT(refusalOf({.tokens = tokens}), HasSubstr(std::to_string(tokens)));
    for (const int needles : {INT32_MIN, -1, 0, 501, INT32_MAX})
        EXPECT_THAT(refusalOf({.needles = needles}), HasSubstr("needles"));
    for (const double depth : {-0.001, 1.001, 1e300, double(INFINITY), double(NAN)})
        EXPECT_THAT(refusalOf({.depth = depth}), HasSubstr("depth"));
    EXPECT_THAT(refusalOf({.tokens = 1000, .needles = 400}), HasSubstr("400 needles do not fit"));
}

TEST(NeedlePrompt, TheLeastLengthItNamesIsEnough) {
    const std::string line = refusalOf({.tokens = 50, .needles = 4});
    const std::size_t at = line.find("at least ");
    ASSERT_NE(at, std::string::npos) << line;
    const int least = std::stoi(line.substr(at + 9));
    EXPECT_LE(tokensOf(makeNeedlePrompt(tokenizer(), {.tokens = least, .needles = 4}).text), least);
    EXPECT_NE(refusalOf({.tokens = least - 1, .needles = 4}), "");
    EXPECT_THAT(refusalOf({.tokens = 10, .needles = 1}), HasSubstr("1 needle does not fit"));
}

TEST(NeedlePrompt, MostNeedlesFitALongPrompt) {
    const auto prompt = makeNeedlePrompt(tokenizer(), {.tokens = 16'000, .needles = 500});
    EXPECT_LE(tokensOf(prompt.text), 16'000);
    EXPECT_TRUE(prompt.text.ends_with(prompt.question));
}

TEST(NeedlePrompt, TheEmbeddedModelAnswersItUnderASparseMethod) {
    const auto model = Model::load(kDefaultModel);
    for (const auto& [depth, seed] : {std::pair(0.1, 1), {0.5, 2}, {0.9, 3}}) {
        const auto prompt = makeNeedlePrompt(
            model->tokenizer(), {.tokens = 1500, .needles = 4, .depth = depth, .seed = std::uint64_t(seed)});
        SessionOptions options;
        options.method = "nosa";
        options.maxNewTokens = 5; // one for each digit
        CollectingSink sink;
        DecodeSession session(model, {model->tokenizer().encode(prompt.text)}, options, sink);
        session.prefill();
        while (session.step()) {
        }
        EXPECT_EQ(model->tokenizer().decode(session.generated().at(0)), prompt.answer) << "depth " << depth;
        session.end(RunStatus::Finished);
    }
}

TEST(LongDocumentPrompt, HasTheLengthAskedFor) {
    for (const int tokens : {2, 3, 10, 50, 100, 777, 1000, 4096, 9000, 16'000}) {
        const std::string text = longDocumentPrompt(tokenizer(), tokens);
        EXPECT_LE(tokensOf(text), tokens);
        EXPECT_GE(tokensOf(text), tokens - 6);
        EXPECT_EQ(text, longDocumentPrompt(tokenizer(), tokens));
    }
}

TEST(LongDocumentPrompt, BeginsWithItsTitleAndIsPlainText) {
    const std::string title = "Notes on Decoding with a Long Memory", text = longDocumentPrompt(tokenizer(), 9000);
    EXPECT_TRUE(text.starts_with(title + "\n\n"));
    EXPECT_EQ(text.find(title, 1), std::string::npos);
    for (const char c : text) ASSERT_TRUE(c == '\n' || (c >= 0x20 && c < 0x7F)) << int(c);
}

TEST(LongDocumentPrompt, ALongerOneBeginsWithTheShorter) {
    const std::string shorter = longDocumentPrompt(tokenizer(), 500), longer = longDocumentPrompt(tokenizer(), 5000);
    EXPECT_TRUE(longer.starts_with(shorter));
}

TEST(LongDocumentPrompt, RefusesImpossibleLengths) {
    for (const int tokens : {INT32_MIN, -1, 0, 1, INT32_MAX})
        EXPECT_THROW(longDocumentPrompt(tokenizer(), tokens), Error) << tokens;
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
