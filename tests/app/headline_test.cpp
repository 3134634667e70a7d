// The headline of the benchmarks without a GPU: what joins one file and what is refused, rows from what benchmarks
// print, and that index and parts name the same rows.
#include "base/error.h"
#include "bench/headline/headline_file.h"
#include "bench/headline/headline_rows.h"
#include "tests/app/cli_fixture.h"
#include "tests/support/places.h"

#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Json = nlohmann::ordered_json;
using test::cli;
using test::Finished;
using ::testing::HasSubstr;

using Headline = test::CliFixture;

const bench::HeadlinePlace kHere{"NVIDIA H200", "580.1", "0123456789abcdef0123456789abcdef01234567"};

Json fileWith(const bench::HeadlinePlace& place, const char* part, double value) {
    Json file = bench::headlineFile(place);
    file["parts"][part]["rows"]["row"]["few"] = {value};
    return file;
}

/// The message with which joining fails; empty where it does not.
std::string whyNotJoined(Json& into, const Json& other) {
    try {
        bench::joinHeadline(into, other, "other.json");
    } catch (const Error& error) {
        return oneLine(error);
    }
    return {};
}

Json index() {
    std::ifstream file(test::source("bench/results/index.json"));
    return Json::parse(file);
}

/// Names of the values (`of`) that the index lists for the row.
std::set<std::string> valuesInIndex(const Json& rows, const std::string& id) {
    std::set<std::string> out;
    for (const Json& row : rows)
        if (row.at("id") == id)
            for (const Json& value : row.at("values")) out.insert(value.at("of").get<std::string>());
    return out;
}

/// Every row has the values that the index lists, and those alone.
void expectRowsOfIndex(const Json& rows) {
    const Json all = index().at("rows");
    for (const auto& [id, values] : rows.items()) {
        std::set<std::string> names;
        for (const auto& [name, value] : values.items()) names.insert(name);
        EXPECT_EQ(names, valuesInIndex(all, id)) << id;
    }
}

TEST_F(Headline, PartsOfOneMachineDriverAndCommitJoin) {
    Json file = fileWith(kHere, "prompts", 1);
    EXPECT_EQ(whyNotJoined(file, fileWith(kHere, "steps", 2)), "");
    EXPECT_EQ(file["parts"].size(), 2U);
    EXPECT_EQ(whyNotJoined(file, fileWith(kHere, "steps", 3)), "");
    EXPECT_EQ(file["parts"]["steps"]["rows"]["row"]["few"], Json({3})) << "a part that was measured again";
    EXPECT_EQ(file["parts"]["prompts"]["rows"]["row"]["few"], Json({1}));
}

TEST_F(Headline, AnotherMachineDriverOrCommitIsRefused) {
    Json file = fileWith(kHere, "prompts", 1);
    const Json before = file;
    bench::HeadlinePlace other = kHere;
    other.machine = "NVIDIA H100";
    EXPECT_THAT(whyNotJoined(file, fileWith(other, "steps", 2)),
                HasSubstr(R"(other.json has parts of another machine: "NVIDIA H100" there, "NVIDIA H200" here)"));
    other = kHere, other.driver = "590";
    EXPECT_THAT(whyNotJoined(file, fileWith(other, "steps", 2)), HasSubstr("another driver"));
    other = kHere, other.commit += "+";
    EXPECT_THAT(whyNotJoined(file, fileWith(other, "steps", 2)), HasSubstr("another commit"));
    EXPECT_EQ(file, before);
}

TEST_F(Headline, FilesAreReadAndOthersRefused) {
    const Json file = fileWith(kHere, "prompts", 1.5);
    bench::writeHeadline(path("a.json"), file);
    EXPECT_EQ(bench::readHeadline(path("a.json")), file);
    for (const char* text : {"[]", "{", R"({"format": 1, "machine": "m", "driver": "d", "parts": {}})",
                             R"({"format": 2, "machine": "m", "driver": "d", "commit": "c", "parts": {}})"}) {
        std::ofstream(path("b.json")) << text;
        EXPECT_THROW(bench::readHeadline(path("b.json")), Error) << text;
    }
    EXPECT_THROW(bench::readHeadline(path("none.json")), Error);
    EXPECT_THROW(bench::writeHeadline(path("none/a.json"), file), Error);
}

TEST_F(Headline, RunsOfARowAreListedTogether) {
    const Json one = {{"row", {{"a", 1.0}, {"b", {3.0, 4.0}}, {"c", "does not fit"}}}},
               two = {{"row", {{"a", 2.0}, {"b", {5.0}}, {"c", "does not fit"}}}};
    EXPECT_EQ(bench::rowsOfRuns({one, two}),
              Json({{"row", {{"a", {1.0, 2.0}}, {"b", {3.0, 4.0, 5.0}}, {"c", "does not fit"}}}}));
    Json lacks = two;
    lacks["row"].erase("a");
    EXPECT_THROW(bench::rowsOfRuns({one, lacks}), Error);
    EXPECT_THROW(bench::rowsOfRuns({lacks, one}), Error);
    for (const Json& none : {Json::array(), Json({1.0, std::nan("")}), Json()}) {
        Json bad = one;
        bad["row"]["a"] = none;
        EXPECT_THROW(bench::rowsOfRuns({bad, two}), Error) << none;
        EXPECT_THROW(bench::rowsOfRuns({bad}), Error) << none;
    }
}

TEST_F(Headline, ClocksAreThoseOfAGpuAtWork) {
    const Json clocks = bench::clocksOf("0, 345, 80.1, 30\n99, 1980, 500, 50\n100, 1755, 690.5, 61\n"
                                        "87, 1800, 650, 60\n[N/A], 1, 2, 3\n");
    EXPECT_EQ(clocks["sm_mhz"], Json({{"least", 1755.0}, {"median", 1800.0}, {"most", 1980.0}}));
    EXPECT_EQ(clocks["watts"]["most"], 690.5);
    EXPECT_TRUE(bench::clocksOf("0, 345, 80.1, 30\n").is_null());
    EXPECT_TRUE(bench::clocksOf("").is_null());
}

TEST_F(Headline, RowsOfPromptsStandBesideThePeers) {
    Json kernels;
    for (const int k : {4, 16, 32}) kernels["prefill_attention_" + std::to_string(k) + "k_tflops"] = 600.0;
    const auto line = [](int tokens, const char* key, double value) { return Json{{"tokens", tokens}, {key, value}}; };
    const bench::PeerLines cudnn{line(4096, "cudnn_tflops", 500), line(16384, "cudnn_tflops", 600),
                                 line(32768, "cudnn_tflops", 1200)};
    const Json attention = bench::promptAttentionRows(kernels, cudnn);
    EXPECT_EQ(attention, Json({{"prefill-attention-rate", {{"4K", 600.0}, {"16K", 600.0}, {"32K", 600.0}}},
                               {"prefill-attention", {{"4K", 1.2}, {"16K", 1.0}, {"32K", 0.5}}}}));
    EXPECT_FALSE(bench::promptAttentionRows(kernels, {}).contains("prefill-attention"));
    expectRowsOfIndex(attention);

    Json prompts;
    for (const int tokens : {4096, 16384, 32768})
        prompts["prompts"].push_back({{"tokens", tokens}, {"prefill_ms", 50.0}});
    const Json whole =
        bench::wholePromptRows(prompts, {line(4096, "transformers_ms", 75), line(16384, "transformers_ms", 50),
                                         line(32768, "transformers_ms", 25)});
    EXPECT_EQ(whole["whole-prompts"], Json({{"4K", 1.5}, {"16K", 1.0}, {"32K", 0.5}}));
    expectRowsOfIndex(whole);
    EXPECT_FALSE(bench::wholePromptRows(prompts, {line(4096, "plain_cudnn_ms", 75)}).contains("whole-prompts"))
        << "transformers is not installed";
    Json measured;
    for (const double ms : {4.0, 6.0}) measured["rounds_rehearsed"].push_back({{"first_minus_second_ms", ms}});
    const Json first = bench::firstPromptRows(measured);
    EXPECT_EQ(first["first-prompt"][""], Json({4.0, 6.0}));
    expectRowsOfIndex(first);
}

TEST_F(Headline, RowsOfKernelsAreTheirSlowest) {
    Json kernels;
    for (const int inputs : {1, 2, 4, 8, 16, 32, 64}) {
        for (const char* layer : {"8b_qkv", "8b_o", "8b_gate_up", "8b_down", "1b_qkv", "1b_gate_up", "1b_down"})
            kernels["linear_" + std::string(layer) + "_inputs_" + std::to_string(inputs) + "_share_of_read"] = 0.9;
        kernels["linear_8b_o_inputs_" + std::to_string(inputs) + "_share_of_read"] = 0.5;
    }
    for (const int heads : {2, 8, 32})
        for (const int blocks : {256, 2048})
            kernels["select_rows_" + std::to_string(heads) + "_blocks_" + std::to_string(blocks) +
                    "_us_above_empty_node"] = heads;
    for (const int batch : {16, 64})
        kernels["attention_batch_" + std::to_string(batch) + "_share_of_read"] = 0.01 * batch;
    const Json projections = bench::projectionRows(kernels), selection = bench::selectionRows(kernels),
               attention = bench::sparseAttentionRows(kernels);
    EXPECT_EQ(projections["projections"]["16"], 0.5);
    EXPECT_EQ(projections["projections-1b"]["16"], 0.9);
    EXPECT_EQ(selection["selection"]["8 x 2,048"], 8);
    EXPECT_EQ(attention["sparse-attention"]["batch 64"], 0.64);
    for (const Json& rows : {projections, selection, attention}) expectRowsOfIndex(rows);
}

TEST_F(Headline, RowsOfStepsAreListsOfTheirTurns) {
    Json one, contexts, recorded;
    for (const double turn : {0.0, 0.01})
        for (const char* shape : {"nosa-8b", "nosa-3b", "nosa-1b"})
            one["rows"].push_back({{"shape", shape},
                                   {"step_ms", 4.0},
                                   {"floor_over_step", 0.9 - turn},
                                   {"us_a_layer_above_floor", 12.0}});
    EXPECT_EQ(bench::batchOneRows(one)["batch-1"]["3B"], Json({0.9, 0.89}));
    expectRowsOfIndex(bench::batchOneRows(one));

    for (const auto& [context, step] : {std::pair{16384, 5.0}, {98304, 5.5}, {16384, 4.0}, {98304, 6.0}})
        contexts["rows"].push_back({{"context", context}, {"step_ms", step}, {"floor_ms", 4.0}});
    const Json resident = bench::residentRows(contexts);
    EXPECT_EQ(resident["resident-nosa"], Json({{"16K", {1.25, 1.0}}, {"96K / 16K", {1.1, 1.5}}}));
    expectRowsOfIndex(resident);

    for (const int batch : {1, 16})
        for (const auto& [note, step] : {std::pair{"off", 3.0},
                                         {"selections", 4.0},
                                         {"kernels", 6.0},
                                         {"off again", 3.0},
                                         {"selections again", 3.0},
                                         {"kernels again", 6.0}})
            recorded["rows"].push_back({{"batch", batch}, {"note", note}, {"step_ms", step}});
    const Json recording = bench::recordingRows(recorded);
    EXPECT_EQ(recording["recording"]["batch 16"], Json({0.75, 1.0}));
    EXPECT_EQ(recording["cupti"]["batch 1"], Json({0.5, 0.5}));
    expectRowsOfIndex(recording);
}

TEST_F(Headline, ACurveSaysWhatDoesNotFit) {
    for (const auto& [context, batches] : {std::pair{4096, std::vector{1, 2, 4, 8, 16, 32, 64, 128, 256}},
                                           {16384, {1, 2, 4, 8, 16, 32, 64, 128, 192, 256}},
                                           {98304, {1, 2, 4, 8, 16, 32}}}) {
        Json decode;
        for (const int turn : {1, 2})
            for (const int batch : batches) {
                Json row{{"context", context}, {"batch", batch}};
                if (context == 16384 && batch == 256)
                    row["refused"] = "too large";
                else
                    row["step_ms"] = 1.0 * turn, row["us_a_layer_above_floor"] = 10.0 * turn;
                decode["rows"].push_back(row);
            }
        const Json rows = bench::batchCurveRows(decode);
        ASSERT_EQ(rows.size(), 2U);
        EXPECT_EQ(rows.front()["batch 4"], Json({1.0, 2.0}));
        EXPECT_EQ(rows.back()["batch 4"], Json({10.0, 20.0}));
        if (context == 16384) {
            EXPECT_EQ(rows.front()["batch 256"], "does not fit");
        }
        expectRowsOfIndex(rows);
    }
}

TEST_F(Headline, OffloadedStepsStandBesideComputingAndCopying) {
    Json decode;
    for (const int batch : {16, 64})
        for (const bool hits : {false, true})
            decode["rows"].push_back({{"batch", batch},
                                      {"selection", hits ? "planted:1" : "planted:0.945"},
                                      {"step_ms", hits ? 6.0 : 9.0},
                                      {"link_floor_ms", hits ? 0.5 : 2.5},
                                      {"tokens_per_s", 1486.36}});
    decode["rows"].push_back({{"batch", 128}, {"refused", "too large"}}); // and therefore the row has no selection
    const Json rows = bench::offloadedRows(decode);
    EXPECT_EQ(rows["offloaded-step"],
              Json({{"batch 16", {1.125}}, {"batch 64", {1.125}}, {"batch 128", "does not fit"}}));
    EXPECT_NEAR(rows["paper-16k"]["EB 16"][0].get<double>(), 2, 1e-9);
    expectRowsOfIndex(rows);
}

TEST_F(Headline, AStepAheadStandsBesideTheLongerOfComputingAndLink) {
    Json decode;
    for (const int batch : {16, 64})
        for (const bool hits : {false, true})
            decode["rows"].push_back({{"batch", batch},
                                      {"selection", hits ? "planted:1" : "planted:0.945"},
                                      {"step_ms", hits ? 6.0 : 9.0},
                                      {"link_floor_ms", hits          ? 0.0
                                                        : batch == 16 ? 3.0
                                                                      : 8.0},
                                      {"tokens_per_s", 1486.36}});
    decode["rows"].push_back({{"batch", 128}, {"refused", "too large"}});
    const Json rows = bench::aheadRows(decode);
    EXPECT_EQ(rows["ahead-step"], Json({{"batch 16", {1.5}}, {"batch 64", {1.125}}, {"batch 128", "does not fit"}}));
    EXPECT_NEAR(rows["paper-16k-ahead"]["EB 16"][0].get<double>(), 2, 1e-9);
    expectRowsOfIndex(rows);
}

TEST_F(Headline, HalvesStandBesideTheStepOnDemandAndItsLimit) {
    Json decode;
    for (const double turn : {1.0, 2.0}) {
        const auto row = [&](const char* selection, double step, double link) {
            decode["rows"].push_back({{"batch", 64},
                                      {"selection", selection},
                                      {"step_ms", step},
                                      {"link_floor_ms", link},
                                      {"tokens_per_s", 1.0}});
        };
        row("planted:0.945", 18.0 * turn, 10.0);
        row("planted:0.945", 12.0, 10.0);
        decode["rows"].back()["parameters"]["overlap"] = "halves";
        row("planted:1", 8.0 * turn, 0.0);
    }
    decode["rows"].push_back({{"batch", 128}, {"refused", "too large"}});
    const Json rows = bench::halvesRows(decode);
    EXPECT_EQ(rows["halves"], Json({{"EB 64", {1.5, 3.0}}, {"EB 128", "does not fit"}}));
    EXPECT_EQ(rows["halves-step"], Json({{"EB 64", {1.2, 0.75}}, {"EB 128", "does not fit"}}));
    expectRowsOfIndex(rows);
}

TEST_F(Headline, PoolsStandBesideFullAttentionInTheSameMemory) {
    Json decode;
    for (const double turn : {1.0, 2.0})
        for (const auto& [note, tokens] : {std::pair{"full", 400.0},
                                           {"offloaded", 2400.0},
                                           {"ahead", 2800.0 * turn},
                                           {"full, 8 bits", 800.0},
                                           {"offloaded, 8 bits", 4000.0},
                                           {"ahead, 8 bits", 4800.0 * turn},
                                           {"nosa, 16K", 3300.0},
                                           {"infllmv2, 16K", 2000.0 * turn}})
            decode["rows"].push_back({{"note", note}, {"tokens_per_s", tokens}});
    const Json rows = bench::sameMemoryRows(decode);
    EXPECT_EQ(rows["full-at-same-memory"], Json({{"EB 64", {6.0, 6.0}},
                                                 {"EB 64, a layer ahead", {7.0, 14.0}},
                                                 {"8 bits on both sides", {5.0, 5.0}},
                                                 {"8 bits on both sides, a layer ahead", {6.0, 12.0}}}));
    EXPECT_EQ(rows["same-memory-rate"]["ahead"], Json({2800.0, 5600.0}));
    EXPECT_EQ(rows["over-infllmv2"][""], Json({1.65, 0.825}));
    expectRowsOfIndex(rows);
    decode["rows"].erase(decode["rows"].begin() + 4); // "offloaded, 8 bits" of the first turn
    decode["rows"].erase(decode["rows"].begin() + 11);
    EXPECT_EQ(bench::sameMemoryRows(decode)["full-at-same-memory"]["8 bits on both sides"], "does not fit");
}

TEST_F(Headline, RowsOfConclusionsAreTheirSpread) {
    const Json exposure{{"exposure",
                         {{{"batch", 4}, {"reported_over_ablation", 0.97}},
                          {{"batch", 16}, {"reported_over_ablation", 1.01}},
                          {{"batch", 64}, {"reported_over_ablation", 1.5}}}}};
    const Json exposed = bench::exposureRows(exposure);
    EXPECT_NEAR(exposed["exposed-ablation"]["batch 4 and 16"][0].get<double>(), 3, 1e-9);
    EXPECT_NEAR(exposed["exposed-ablation"]["batch 64"][0].get<double>(), 50, 1e-9);
    expectRowsOfIndex(exposed);

    const Json lookahead{{"lookahead",
                          {{{"batch", 4}, {"ahead_over_waiting", 1.3}, {"exposed_over_waiting", 0.25}},
                           {{"batch", 16}, {"ahead_over_waiting", 1.9}, {"exposed_over_waiting", 0.5}}}}};
    EXPECT_EQ(bench::hiddenTransferRows(lookahead)["ahead"],
              Json({{"", {1.3, 1.9}}, {"up to batch 8", {25.0}}, {"batch 16", {50.0}}}));
    expectRowsOfIndex(bench::hiddenTransferRows(lookahead));

    const Json operators{{"operators", {{{"over_full", 2.0}, {"over_double-sparsity", 3.0}}}}};
    EXPECT_EQ(bench::operatorRows(operators)["asynctls"]["Double Sparsity"], Json({3.0}));
    expectRowsOfIndex(bench::operatorRows(operators));

    const Json longer{{"rows", {{{"tokens_200_to_1200_over_1_to_4", 1.9}}, {{"tokens_200_to_1200_over_1_to_4", 2.0}}}}};
    EXPECT_EQ(bench::longAnswerRows(longer)["long-answer"][""], Json({1.9, 2.0}));
    expectRowsOfIndex(bench::longAnswerRows(longer));
}

TEST_F(Headline, QuantisedBlocksStandBesideBf16) {
    Json decode;
    for (const double speed : {1.0, 0.5})
        for (const auto& [type, bytes] : {std::pair{"", 100.0}, {"int8", 52.0}, {"int4", 30.0}}) {
            decode["rows"].push_back({{"step_ms", 1.0}, {"h2d_mb_per_step", bytes}, {"tokens_per_s", bytes * speed}});
            if (*type != 0) decode["rows"].back()["kv_type"] = type;
        }
    const Json rows = bench::quantisedBlockRows(decode);
    EXPECT_EQ(rows["quantised-blocks"]["4 bits"], Json({0.3, 0.3}));
    EXPECT_EQ(rows["quantised-blocks"]["8 bits, tokens/s"], Json({0.52, 0.52}));
    expectRowsOfIndex(rows);
}

TEST_F(Headline, RowsOfOtherBenchmarksAreInTheIndex) {
    const Json moved = {{"by_block_size",
                         {{{"block_kib", 4.0}, {"gather_4_ctas_share_of_copy", 0.1}},
                          {{"block_kib", 16.0},
                           {"gather_4_ctas_share_of_copy", 0.9},
                           {"gather_4_ctas_gb_per_s", 50.0},
                           {"one_call_per_block_gb_per_s", 5.0}}}}};
    EXPECT_EQ(bench::gatherRows(moved)["gather-over-calls"]["4 thread blocks"], 10.0);
    expectRowsOfIndex(bench::gatherRows(moved));

    Json layer;
    layer["block_16_prefix_65536"]["dense_over_floor"] = 1.9;
    for (const char* budget : {"budget_128", "budget_256", "budget_512"})
        layer["block_16_prefix_65536"][budget] = {{"dense_over_losa", 2.0}, {"quest_over_losa", 1.3}};
    EXPECT_EQ(bench::blockDiffusionRows(layer)["block-diffusion"]["Quest / LoSA, 512"], 1.3);
    expectRowsOfIndex(bench::blockDiffusionRows(layer));

    Json served;
    for (const double us : {60.0, 10.0})
        served["plans"]["servers"].push_back(
            {{"plan_p50_us", {{"value", us}}}, {"plan_p99_us", {{"value", 100 - us}}}});
    EXPECT_EQ(bench::planRows(served)["plans"], Json({{"median", 60.0}, {"P99", 90.0}}));
    expectRowsOfIndex(bench::planRows(served));

    const Json views = bench::viewRows(
        {{"frame_median_ms", 2.0}},
        {{"heatmap", {{"resident_mb", 7.0}, {"mean", {{"median_ms", 3.0}}}, {"sum", {{"median_ms", 4.0}}}}}},
        {{"one_window", {{"share_of_headless_median", 0.99}}}});
    EXPECT_EQ(views["views"], Json({{"timeline", 2.0}, {"heatmap", 4.0}}));
    expectRowsOfIndex(views);
    expectRowsOfIndex(bench::llamaRows({{"prompt", 3.0}, {"decode", 1.1}}));
}

TEST_F(Headline, PartsNameRowsOfTheIndex) {
    const Finished finished = cli({"bench", "headline", "--json", "--set", "list=true"});
    ASSERT_EQ(finished.status, 0) << finished.err;
    const Json rows = index().at("rows");
    std::set<std::string> measured;
    const Json listed = Json::parse(finished.out);
    for (const Json& part : listed.at("headline").at("parts")) {
        EXPECT_GT(part.at("minutes"), 0);
        for (const Json& id : part.at("rows")) {
            EXPECT_FALSE(valuesInIndex(rows, id).empty()) << id;
            EXPECT_TRUE(measured.insert(id).second) << id << " is of two parts";
        }
    }
    EXPECT_GE(measured.size(), 37U);
}

TEST_F(Headline, FilesJoinWithoutMeasuring) {
    bench::writeHeadline(path("a.json"), fileWith(kHere, "prompts", 1));
    bench::writeHeadline(path("b.json"), fileWith(kHere, "steps", 2));
    const Finished joined = cli({"bench", "headline", "--set", "join=" + path("a.json") + "," + path("b.json"), "--set",
                                 "out=" + path("c.json")});
    ASSERT_EQ(joined.status, 0) << joined.err;
    EXPECT_EQ(bench::readHeadline(path("c.json"))["parts"].size(), 2U);
    bench::HeadlinePlace other = kHere;
    other.driver = "590";
    bench::writeHeadline(path("d.json"), fileWith(other, "gather", 3));
    const Finished refused =
        cli({"bench", "headline", "--set", "join=" + path("d.json"), "--set", "out=" + path("c.json")});
    EXPECT_EQ(refused.status, 1);
    EXPECT_THAT(refused.err, HasSubstr("parts of another driver"));
    EXPECT_EQ(bench::readHeadline(path("c.json"))["parts"].size(), 2U);
}

TEST_F(Headline, WhatCannotBeMeasuredIsRefusedFirst) {
    const std::string out = "out=" + path("a.json");
    EXPECT_THAT(cli({"bench", "headline", "--set", "only=plans,nothing", "--set", out}).err,
                HasSubstr("the headline has no part 'nothing'"));
    EXPECT_THAT(cli({"bench", "headline", "--set", "only=plans", "--set", "out=" + path("none/a.json")}).err,
                HasSubstr("cannot be written"));
    bench::writeHeadline(path("a.json"), fileWith(kHere, "prompts", 1)); // of another machine and commit than this one
    const Finished other = cli({"bench", "headline", "--set", "only=plans", "--set", out, "--set", "commit=0123"});
    EXPECT_EQ(other.status, 1);
    EXPECT_THAT(other.err, HasSubstr("has parts of another"));
    EXPECT_EQ(bench::readHeadline(path("a.json"))["parts"].size(), 1U);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
