// kvscope-cli roofline as a person and a script use it.
#include "tests/app/process.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/places.h"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using test::Finished;
using ::testing::HasSubstr;

class RooflineCli : public ::testing::Test {
protected:
    RooflineCli() { setenv("XDG_CONFIG_HOME", folder.path().c_str(), 1); } // the person's own table stays out

    static Finished cli(std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), {test::kCommandLine, "roofline"});
        return test::runProcess(arguments);
    }
    static json ask(std::vector<std::string> arguments) {
        arguments.emplace_back("--json");
        const Finished result = cli(arguments);
        EXPECT_EQ(result.status, 0) << result.err;
        return json::parse(result.out, nullptr, false);
    }
    static std::string refusal(const std::vector<std::string>& arguments) {
        const Finished result = cli(arguments);
        EXPECT_NE(result.status, 0);
        EXPECT_EQ(result.out, "");
        return result.err;
    }
    test::Folder folder;
};

TEST_F(RooflineCli, PredictsEveryCombination) {
    const json out = ask({"--shape", "nosa-8b", "--gpu", "a100", "--context", "16384,32768", "--batch", "4,64",
                          "--hit-rate", "0.9,bound"});
    EXPECT_EQ(out["shape"], "nosa-8b");
    EXPECT_EQ(out["gpu"]["read_gbps"], 2039);
    EXPECT_EQ(out["configs_are"], "predicted");
    ASSERT_EQ(out["configs"].size(), 2u * 2 * (1 + 1 + 2 * 2));
    for (const json& row : out["configs"]) {
        EXPECT_GT(row["tokens_per_s"], 0);
        const json& path = row["critical_path_ms"];
        EXPECT_NEAR(path["hbm"].get<double>() + path["compute"].get<double>() + path["link"].get<double>(),
                    row["step_ms"].get<double>(), 1e-9);
        EXPECT_NEAR(row["tokens_per_s"].get<double>() * row["step_ms"].get<double>(),
                    1000 * row["decoded_together"].get<double>(), 1e-6);
    }
    EXPECT_EQ(out["configs"][0]["method"], "full");
    EXPECT_TRUE(out["configs"][0]["hit_rate"].is_null());
    EXPECT_DOUBLE_EQ(out["configs"][3]["hit_rate"].get<double>(), 1 - 15.0 / 64) << "the bound of NOSA's defaults";
}

TEST_F(RooflineCli, LinkParametersAndMemoryChangeThePrediction) {
    const std::vector<std::string> base{"--shape", "nosa-8b", "--gpu", "h200",       "--context",
                                        "16384",   "--batch", "64",    "--hit-rate", "0.9"};
    const auto offloaded = [&](std::vector<std::string> more) {
        more.insert(more.begin(), base.begin(), base.end());
        const json out = ask(more);
        for (const json& row : out["configs"])
            if (row["placement"] == "offloaded") return row;
        return json();
    };
    const json plain = offloaded({}), slow = offloaded({"--link", "26", "--latency", "0"}),
               half = offloaded({"--set", "total_blocks=33"}), small = offloaded({"--kv-memory", "2"});
    EXPECT_NEAR(slow["link_ms"].get<double>(),
                (slow["h2d_bytes"].get<double>() + slow["d2h_bytes"].get<double>()) / 26e6, 1e-9);
    EXPECT_EQ(plain["bound_by"], "PCIe");
    EXPECT_NEAR(half["h2d_bytes"].get<double>() / plain["h2d_bytes"].get<double>(), 33.0 / 64, 1e-12);
    EXPECT_EQ(small["bound_by"], "HBM capacity");
    EXPECT_EQ(small["decoded_together"], 14);
}

TEST_F(RooflineCli, SetsARecordedRunBesideItsPrediction) {
    const std::string trace = test::source("resources/samples/h200-nosa-8b.kvtrace");
    const json out = ask({"--trace", trace});
    EXPECT_EQ(out["shape"], "nosa-8b") << "found by the run's own model name";
    EXPECT_EQ(out["gpu"]["name"], "h200") << "found by the run's own device";
    const json& recorded = out["recorded"];
    EXPECT_NEAR(recorded["predicted_over_measured"].get<double>(),
                recorded["predicted_ms"].get<double>() / recorded["measured"]["step_ms"].get<double>(), 1e-9);
    EXPECT_LT(recorded["predicted_over_measured"].get<double>(), 1.02);
    EXPECT_THAT(recorded["why"].get<std::string>(), HasSubstr("projections"));
    const Finished text = cli({"--trace", trace});
    EXPECT_THAT(text.out, HasSubstr("predicted / measured 0."));
    EXPECT_THAT(text.out, HasSubstr("bound by HBM bandwidth"));
}

TEST_F(RooflineCli, KeepsModelledLinkTimeOutOfTheComparison) {
    const std::string trace = (folder / "cpu.kvtrace").string(), table = (folder / "cpu.json").string();
    const Finished recorded = test::runProcess({test::kCommandLine, "run", "--prompt-needle", "1500",
                                                "--max-new-tokens", "8", "--ignore-eos", "--trace", trace});
    ASSERT_EQ(recorded.status, 0) << recorded.err;
    EXPECT_THAT(refusal({"--trace", trace}), HasSubstr("roofline --measure"));
    std::ofstream(table) << R"({"gpus":[{"name":"local-cpu","read_gbps":400,"tflops":10,"memory_gib":8,"link_gbps":1,
                               "latency_us":1000}]})";
    const json out = ask({"--trace", trace, "--gpus", table});
    const json& run = out["recorded"];
    EXPECT_EQ(run["link_timing"], "modelled");
    EXPECT_GT(run["predicted"]["critical_path_ms"]["link"].get<double>(), 8.0) << "8 layers wait 1 ms each";
    EXPECT_LT(run["predicted_ms"].get<double>(), 1.0) << "none of it is in what measured time is compared with";
    EXPECT_LT(run["predicted_over_measured"].get<double>(), 1);
    EXPECT_EQ(run["measured"]["parts_ms"]["exposed"], 0);
    const Finished text = cli({"--trace", trace, "--gpus", table});
    EXPECT_THAT(text.out, HasSubstr("modelled in this run and in neither"));
}

TEST_F(RooflineCli, TheWaterfallSaysWhatKeepsARunFromItsRoof) {
    const std::string trace = test::source("resources/samples/h200-nosa-8b.kvtrace");
    const json out = ask({"--waterfall", "--trace", trace});
    double loss = 0;
    for (const json& bar : out["bars"]) {
        loss += bar["loss_ns"].get<double>();
        EXPECT_NEAR(bar["measured_ns"].get<double>() - bar["floor_ns"].get<double>(), bar["loss_ns"].get<double>(),
                    1e-6);
    }
    const double difference = out["measured_ns"].get<double>() - out["predicted_ns"].get<double>();
    EXPECT_NEAR(loss, difference, 0.01 * difference);
    EXPECT_EQ(out["bars"][0]["id"], "ffn");
    EXPECT_EQ(out["bars"].back()["id"], "unexplained");
    EXPECT_GE(out["bars"][0]["most_of_it"]["step"].get<int>(), 2) << "cold steps are left out";
    EXPECT_EQ(out["machine"], "NVIDIA H200");
    const Finished text = cli({"--waterfall", "--trace", trace});
    EXPECT_THAT(text.out, HasSubstr("54 % of the step is ffn, at 0.7"));
    EXPECT_THAT(text.out, HasSubstr("unexplained"));
    const json slower = ask({"--waterfall", "--trace", trace, "--gpu", "a100"});
    EXPECT_GT(slower["predicted_ns"].get<double>(), out["predicted_ns"].get<double>()) << "on a machine that is named";
    EXPECT_THAT(refusal({"--waterfall"}), HasSubstr("--trace"));
    EXPECT_THAT(refusal({"--waterfall", "--trace", trace, "--context", "4096"}), HasSubstr("--context"));
}

TEST_F(RooflineCli, MeasuresTheProcessorIntoTheTable) {
    const std::string table = (folder / "mine.json").string();
    const json spec = ask({"--measure=cpu", "--gpus", table});
    EXPECT_EQ(spec["name"], "local-cpu");
    EXPECT_GT(spec["read_gbps"].get<double>(), 0.5);
    EXPECT_GT(spec["tflops"].get<double>(), 1e-3);
    const json list = ask({"--list-gpus", "--gpus", table});
    EXPECT_EQ(list["gpus"].back()["name"], "local-cpu");
    EXPECT_EQ(list["gpus"].back()["read_gbps"], spec["read_gbps"]);
    const json out =
        ask({"--model", "nosa-tiny", "--gpu", "local-cpu", "--gpus", table, "--context", "4096", "--batch", "1"});
    EXPECT_EQ(out["shape"], "nosa-tiny");
}

TEST_F(RooflineCli, SaysThatTheTableCannotBeWrittenBeforeItMeasures) {
    const std::string noFolder = (folder / "plain").string(), noTable = (folder / "notes.json").string();
    std::ofstream(noFolder) << "text";
    std::ofstream(noTable) << R"({"machines": []})";
    const std::string aFolder = folder.path().string();
    for (const std::string& file : {noFolder + "/gpus.json", noTable, aFolder}) {
        const Finished refused = cli({"--measure=cpu", "--gpus", file});
        EXPECT_NE(refused.status, 0) << file;
        EXPECT_THAT(refused.err, HasSubstr(file));
        EXPECT_THAT(refused.err, ::testing::Not(HasSubstr("memory is read at"))) << "it was measured in vain";
    }
}

TEST_F(RooflineCli, RefusesWhatItCannotUseInOneSentence) {
    EXPECT_THAT(refusal({"--shape", "gpt-9"}), HasSubstr("unknown model shape 'gpt-9'; known shapes: nosa-1b"));
    EXPECT_THAT(refusal({"--gpu", "abacus"}), HasSubstr("no GPU 'abacus' in the table; known: h200"));
    EXPECT_THAT(refusal({"--hit-rate", "2"}), HasSubstr("cannot read --hit-rate '2'"));
    EXPECT_THAT(refusal({"--hit-rate", "high"}), HasSubstr("cannot read --hit-rate 'high'"));
    EXPECT_THAT(refusal({"--context", "0"}), HasSubstr("--context"));
    EXPECT_THAT(refusal({"--batch", "many"}), HasSubstr("--batch"));
    EXPECT_THAT(refusal({"--slots", "3"}), HasSubstr("--slots 3 is fewer than the 64 blocks"));
    EXPECT_THAT(refusal({"--latency", "1e300"}), HasSubstr("--latency"));
    EXPECT_THAT(refusal({"--gpus", "/no/such/file"}), HasSubstr("cannot read the GPU table /no/such/file"));
    EXPECT_THAT(refusal({"--link", "string"}), HasSubstr("unknown link 'string'"));
    EXPECT_THAT(refusal({"--method", "magic"}), HasSubstr("magic"));
    EXPECT_THAT(refusal({"--trace", "/no/such.kvtrace"}), HasSubstr("/no/such.kvtrace"));
    EXPECT_THAT(refusal({"--trace", test::source("resources/samples/h200-nosa-8b.kvtrace"), "--shape", "llama3-8b"}),
                HasSubstr("is not that of the run's model"));
    std::ofstream((folder / "bad.json").string()) << R"({"gpus":[{"name":"x","read_gbps":"fast"}]})";
    EXPECT_THAT(refusal({"--gpus", (folder / "bad.json").string()}), HasSubstr("'read_gbps' is \"fast\", no number"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
