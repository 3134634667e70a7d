// The callback for llama.cpp, against the seam of ggml's scheduler: it asks whether a node is wanted, computes up to
// it, and shows it. llama.cpp itself is not here.
#include "sdk/trace/kvscope_llama.h"
#include "sdk/trace/kvscope_trace.h"
#include "tests/sdk/sdk_fixture.h"

#include <cstring>
#include <deque>
#include <fstream>
#include <iterator>
#include <numeric>

extern "C" size_t ggml_nbytes(const ggml_tensor* tensor) {
    size_t bytes = 4; // of an element
    for (int i = 0; i < 4; ++i) bytes += size_t(tensor->ne[i] - 1) * tensor->nb[i];
    return bytes;
}
extern "C" void ggml_backend_tensor_get(const ggml_tensor* tensor, void* data, size_t offset, size_t size) {
    std::memcpy(data, static_cast<const char*>(tensor->data) + offset, size);
}

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A graph whose nodes are evaluated as ggml's scheduler does.
class Graph {
public:
    /// values: [streams][tokens][k], as ggml holds them but for `gap` elements behind each row.
    template <class Value>
    void add(const std::string& name, std::int64_t k, std::int64_t tokens, std::int64_t streams,
             const std::vector<Value>& values, std::int64_t gap = 0) {
        static_assert(sizeof(Value) == 4);
        ggml_tensor tensor{};
        tensor.type = std::is_same_v<Value, float> ? GGML_TYPE_F32 : GGML_TYPE_I32;
        const std::int64_t shape[] = {k, tokens, 1, streams};
        std::copy(std::begin(shape), std::end(shape), tensor.ne);
        tensor.nb[0] = 4;
        tensor.nb[1] = size_t(4 * (k + gap));
        tensor.nb[2] = tensor.nb[3] = tensor.nb[1] * size_t(tokens);
        std::vector<char>& bytes = memory_.emplace_back(tensor.nb[3] * size_t(streams), char(0x7F));
        for (std::int64_t row = 0; row < tokens * streams; ++row)
            std::memcpy(bytes.data() + std::size_t(row) * tensor.nb[1], &values[std::size_t(row * k)],
                        std::size_t(4 * k));
        tensor.data = bytes.data();
        std::snprintf(tensor.name, sizeof tensor.name, "%s", name.c_str());
        nodes_.push_back(tensor);
    }
    /// @return names of the nodes that were asked for
    std::vector<std::string> compute(ggml_backend_sched_eval_callback callback, void* user) {
        std::vector<std::string> seen;
        for (ggml_tensor& node : nodes_) {
            if (!callback(&node, true, user)) continue;
            seen.emplace_back(node.name);
            EXPECT_TRUE(callback(&node, false, user)) << "the graph would be cancelled";
        }
        return seen;
    }

private:
    std::vector<ggml_tensor> nodes_;
    std::deque<std::vector<char>> memory_;
};

class LlamaTest : public test::SdkTest {
protected:
    /// Runs `steps` within a run and returns the table of selections. level: of the file.
    template <class Steps> auto record(int layers, int sequences, int level, Steps steps) {
        const kvtrace_writer writer = open(path("llama.kvtrace"), level);
        kvtrace_run_info info = test::runOf(KVTRACE_KNOWS_SELECTIONS, layers, 1, sequences, 4);
        kvtrace_run run = 0;
        EXPECT_EQ(kvtrace_run_begin(writer, &info, &run), KVTRACE_OK) << kvtrace_last_error();
        kvscope_llama rec;
        kvscope_llama_init(&rec, run);
        steps(rec);
        problem_ = rec.problem;
        recorded_ = rec.recorded;
        kvscope_llama_free(&rec);
        EXPECT_EQ(kvtrace_run_end(run, KVTRACE_FINISHED, nullptr), KVTRACE_OK);
        EXPECT_EQ(kvtrace_close(writer, 10'000), KVTRACE_OK);
        return read(path("llama.kvtrace"), "selections");
    }
    std::string problem_;
    std::int64_t recorded_ = 0;
};

TEST_F(LlamaTest, RecordsTheChoiceOfEveryLayerAndAsksForNothingElse) {
    std::vector<std::string> seen, before;
    const auto rows = record(2, 1, KVTRACE_SELECTIONS, [&](kvscope_llama& rec) {
        Graph graph;
        graph.add<std::int32_t>("top_k-0", 4, 1, 1, {9, 2, 30, 31});
        graph.add<float>("indexer_score-1", 3, 1, 1, {1, 2, 3});
        graph.add<std::int32_t>("top_k-1", 4, 1, 1, {0, 40, -1, 16}); // 40 is a padded cell behind the query
        graph.add<std::int32_t>("top_k-1 (view)", 4, 1, 1, {0, 1, 2, 3});
        graph.add<std::int32_t>("ffn_moe_topk-1", 2, 1, 1, {0, 1});
        before = graph.compute(kvscope_llama_eval, &rec); // a prompt, outside begin and end
        for (const std::int64_t position : {31, 32}) {
            kvscope_llama_begin(&rec, &position, nullptr, 1);
            seen = graph.compute(kvscope_llama_eval, &rec);
            kvscope_llama_end(&rec);
        }
    });
    EXPECT_EQ(problem_, "");
    EXPECT_TRUE(before.empty());
    EXPECT_THAT(seen, ElementsAre("top_k-0", "top_k-1"));
    EXPECT_EQ(recorded_, 4);
    ASSERT_EQ(rows.at("step").ints.size(), 4U);
    EXPECT_THAT(rows.at("blocks").lists[0], ElementsAre(0, 2, 7)); // of 4 tokens each
    EXPECT_THAT(rows.at("blocks").lists[1], ElementsAre(0, 4));
    EXPECT_EQ(rows.at("kept").ints[2], 3);
}

TEST_F(LlamaTest, CellsBecomePositionsAndRowsMayHaveStreamsAndGaps) {
    const auto rows = record(1, 2, KVTRACE_SELECTIONS, [&](kvscope_llama& rec) {
        rec.position_of_cell = [](void*, std::int32_t row, std::int32_t cell) -> std::int64_t {
            return cell < 100 * row ? -1 : cell - 100 * row; // the second sequence has the cells from 100 on
        };
        Graph graph;
        graph.add<std::int32_t>("top_k-0", 3, 1, 2, {1, 8, 20, 104, 117, 3}, 5);
        const std::int64_t positions[] = {21, 17};
        const std::int32_t sequences[] = {1, 0};
        kvscope_llama_begin(&rec, positions, sequences, 2);
        graph.compute(kvscope_llama_eval, &rec);
        kvscope_llama_end(&rec);
    });
    EXPECT_EQ(problem_, "");
    ASSERT_EQ(rows.at("seq").ints, (std::vector<std::int64_t>{0, 1}));
    EXPECT_THAT(rows.at("blocks").lists[0], ElementsAre(1, 4));    // positions 4 and 17
    EXPECT_THAT(rows.at("blocks").lists[1], ElementsAre(0, 2, 5)); // positions 1, 8 and 20
}

TEST_F(LlamaTest, ScoresComeWithTheirIdsAndAnotherChoiceHasItsGap) {
    for (const std::int32_t last : {20, 26}) // two runs of one file
        record(1, 1, KVTRACE_FULL, [&](kvscope_llama& rec) {
            rec.scores = true;
            std::vector<float> scores(32);
            std::iota(scores.begin(), scores.end(), 100.f);
            Graph graph;
            graph.add<float>("indexer_score-0", 32, 1, 1, scores);
            graph.add<std::int32_t>("top_k-0", 3, 1, 1, {5, 7, last});
            const std::int64_t position = 31;
            kvscope_llama_begin(&rec, &position, nullptr, 1);
            EXPECT_THAT(graph.compute(kvscope_llama_eval, &rec), ElementsAre("indexer_score-0", "top_k-0"));
            kvscope_llama_end(&rec);
        });
    EXPECT_EQ(problem_, "");
    const auto compared = cli({"compare", path("llama.kvtrace"), path("llama.kvtrace"), "--run-a", "1", "--run-b", "2",
                               "--differences", path("differences.csv")});
    EXPECT_THAT(compared.out, HasSubstr("2 of 4 selected blocks (50 %) are in one run only; 0 of them nearly tied"));
    std::ifstream file(path("differences.csv"));
    const std::string rows{std::istreambuf_iterator<char>(file), {}};
    EXPECT_THAT(rows, HasSubstr("\n1,1,0,0,0,5,a,token-level,120,13,1\n")) << "beside 107, the best token of block 1";
    EXPECT_THAT(rows, HasSubstr("\n1,1,0,0,0,6,b,token-level,126,19,1\n"));
}

TEST_F(LlamaTest, PromptsAreStepsOfTheirOwnOrBesideSequencesThatDecode) {
    const std::vector<std::int32_t> ids(20, 5);
    std::vector<std::string> ofPrompt, ofMixed;
    const auto rows = record(1, 2, KVTRACE_SELECTIONS, [&](kvscope_llama& rec) {
        rec.position_of_cell = [](void*, std::int32_t, std::int32_t cell) -> std::int64_t { return cell; };
        Graph prompt, mixed;
        prompt.add<std::int32_t>("top_k-0", 1, 20, 1, std::vector<std::int32_t>(20, 3));
        kvscope_llama_prompt(&rec, 0, 0, 20, ids.data(), true);
        kvscope_llama_begin(&rec, nullptr, nullptr, 0);
        ofPrompt = prompt.compute(kvscope_llama_eval, &rec);
        kvscope_llama_end(&rec);
        mixed.add<std::int32_t>("top_k-0", 2, 4, 1, {0, 17, 9, 9, 9, 9, 9, 9}); // the row that decodes comes first
        const std::int64_t position = 20;
        kvscope_llama_prompt(&rec, 1, 0, 3, ids.data(), true);
        kvscope_llama_begin(&rec, &position, nullptr, 1);
        ofMixed = mixed.compute(kvscope_llama_eval, &rec);
        kvscope_llama_end(&rec);
    });
    EXPECT_EQ(problem_, "");
    EXPECT_TRUE(ofPrompt.empty()) << "what a prompt selects is not asked for";
    EXPECT_THAT(ofMixed, ElementsAre("top_k-0"));
    ASSERT_EQ(rows.at("step").ints, std::vector<std::int64_t>{1});
    EXPECT_THAT(rows.at("blocks").lists[0], ElementsAre(0, 4));
    auto steps = read(path("llama.kvtrace"), "steps"), pieces = read(path("llama.kvtrace"), "pieces");
    EXPECT_THAT(steps["phase"].texts, ElementsAre("prefill", "decode"));
    EXPECT_THAT(steps["tokens"].ints, ElementsAre(20, 4));
    EXPECT_THAT(pieces["seq"].ints, ElementsAre(0, 1));
    EXPECT_THAT(pieces["tokens"].ints, ElementsAre(20, 3));
    EXPECT_EQ(read(path("llama.kvtrace"), "prompts")["token_id"].ints.size(), 23u);
    expectGood(path("llama.kvtrace"));
}

TEST_F(LlamaTest, ABatchInTwoPartsBesideAPromptTurnsItOff) {
    record(1, 2, KVTRACE_SELECTIONS, [&](kvscope_llama& rec) {
        rec.position_of_cell = [](void*, std::int32_t, std::int32_t cell) -> std::int64_t { return cell; };
        Graph half;
        half.add<std::int32_t>("top_k-0", 2, 2, 1, {0, 1, 0, 1});
        const std::int64_t position = 20;
        kvscope_llama_prompt(&rec, 1, 0, 3, nullptr, true);
        kvscope_llama_begin(&rec, &position, nullptr, 1);
        half.compute(kvscope_llama_eval, &rec);
        kvscope_llama_end(&rec);
    });
    EXPECT_THAT(problem_, HasSubstr("for 4 rows of the batch"));
    EXPECT_EQ(recorded_, 0);
}

TEST_F(LlamaTest, WhatCannotBeRecordedTurnsItOffAndLeavesTheGraphAlone) {
    record(1, 2, KVTRACE_SELECTIONS, [&](kvscope_llama& rec) {
        const std::int64_t positions[] = {1, 2};
        kvscope_llama_begin(&rec, positions, nullptr, 2);
        EXPECT_THAT(rec.problem, HasSubstr("set position_of_cell"));
        Graph graph;
        graph.add<std::int32_t>("top_k-0", 1, 2, 1, {0, 0});
        EXPECT_TRUE(graph.compute(kvscope_llama_eval, &rec).empty());
    });
    EXPECT_EQ(recorded_, 0);
    record(1, 1, KVTRACE_SELECTIONS, [&](kvscope_llama& rec) {
        Graph graph;
        graph.add<float>("top_k-0", 2, 3, 1, {0, 0, 0, 0, 0, 0});
        const std::int64_t position = 9;
        kvscope_llama_begin(&rec, &position, nullptr, 1);
        graph.compute(kvscope_llama_eval, &rec);
        kvscope_llama_end(&rec);
    });
    EXPECT_THAT(problem_, HasSubstr("node top_k-0 has type 0 and shape [2, 3, 1, 1] for 1 rows"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
