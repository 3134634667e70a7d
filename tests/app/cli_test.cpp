// The command line as a person and a script use it.
#include "tests/app/cli_fixture.h"
#include "tests/core/golden_file.h"
#include "tests/support/places.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <sqlite3.h>
#include <sstream>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;
using nlohmann::json;
using test::cli;
using test::Finished;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Cli : public ::testing::Test {
protected:
    Cli() {
        std::string name = (fs::temp_directory_path() / "kvscope-cli-XXXXXX").string();
        folder_ = mkdtemp(name.data());
    }
    ~Cli() override { fs::remove_all(folder_); }
    std::string path(const std::string& name) const { return (folder_ / name).string(); }
    void write(const std::string& name, const std::string& text) const {
        std::ofstream(path(name), std::ios::binary) << text;
    }

    /// A short recorded run. @return its JSON document
    json record(const std::string& trace, std::vector<std::string> more = {}) const {
        std::vector<std::string> arguments{
            "run", "--prompt-needle", "1500", "--max-new-tokens", "12", "--ignore-eos", "--trace", trace, "--json"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        const Finished result = cli(arguments);
        EXPECT_EQ(result.status, 0) << result.err;
        return json::parse(result.out);
    }

    fs::path folder_;
};

std::vector<std::string> lines(const std::string& text) {
    std::vector<std::string> out;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) out.push_back(line);
    return out;
}

std::int64_t queryOne(const std::string& trace, const std::string& sql) {
    sqlite3* db = nullptr;
    EXPECT_EQ(sqlite3_open_v2(trace.c_str(), &db, SQLITE_OPEN_READONLY, nullptr), SQLITE_OK);
    sqlite3_stmt* statement = nullptr;
    EXPECT_EQ(sqlite3_prepare_v2(db, sql.c_str(), -1, &statement, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
    std::int64_t value = -1;
    if (sqlite3_step(statement) == SQLITE_ROW) value = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return value;
}

TEST_F(Cli, HelpAndVersionSucceed) {
    EXPECT_EQ(cli({"--version"}).status, 0);
    const Finished help = cli({"--help"});
    EXPECT_EQ(help.status, 0);
    for (const char* command : {"run", "export", "info", "methods", "replay", "bench"})
        EXPECT_THAT(help.out, HasSubstr(command));
}

TEST_F(Cli, MethodsDescribesTheOneThatIsNamed) {
    const Finished one = cli({"methods", "msa", "--json"});
    const json described = json::parse(one.out, nullptr, false);
    ASSERT_EQ(described.size(), 1u) << one.err;
    EXPECT_EQ(described[0].at("name"), "msa");
}

TEST_F(Cli, MethodsJsonDeclaresEveryParameterCompletely) {
    const Finished result = cli({"methods", "--json"});
    ASSERT_EQ(result.status, 0);
    const json list = json::parse(result.out);
    std::vector<std::string> names;
    for (const json& method : list) {
        names.push_back(method.at("name"));
        for (const char* key : {"title", "source", "needs"}) EXPECT_TRUE(method.at(key).is_string()) << key;
        for (const json& parameter : method.at("parameters")) {
            for (const char* key : {"key", "type", "default", "min", "max", "unit", "help"})
                EXPECT_TRUE(parameter.contains(key)) << key;
            if (parameter["type"] == "integer") {
                EXPECT_TRUE(parameter["default"].is_number_integer());
                EXPECT_LE(parameter["min"], parameter["default"]);
                EXPECT_GE(parameter["max"], parameter["default"]);
            }
            EXPECT_GT(parameter["help"].get<std::string>().size(), 10u);
        }
    }
    EXPECT_THAT(names, ::testing::IsSupersetOf({"full", "streaming", "quest", "infllmv2", "dma", "nosa"}));
}

TEST_F(Cli, MethodsJsonSaysWhatIsDenoisedWhere) {
    std::map<std::string, json> reach;
    for (const json& method : json::parse(cli({"methods", "--json"}).out))
        if (method.contains("denoises_on")) reach[method.at("name")] = method.at("denoises_on");
    const auto on = [](bool blocks, bool canvases, bool prefix) {
        return json{{"blocks", blocks}, {"canvases", canvases}, {"prefix_on_host", prefix}};
    };
    const std::map<std::string, json> expected{
        {"full", {{"cpu", on(true, true, false)}, {"cuda", on(true, true, false)}}},
        {"quest", {{"cpu", on(true, false, true)}, {"cuda", on(true, false, true)}}},
        {"losa", {{"cpu", on(true, false, true)}, {"cuda", on(true, false, true)}}},
        {"sparsed", {{"cpu", on(true, true, false)}, {"cuda", on(true, true, false)}}},
        {"sparse-dllm", {{"cpu", on(false, true, false)}, {"cuda", on(false, true, false)}}},
    };
    EXPECT_EQ(reach, expected);
}

TEST_F(Cli, TheMethodsPageIsTheDeclarations) {
    std::ifstream file(test::source("docs/methods.md"));
    const std::string page((std::istreambuf_iterator<char>(file)), {});
    EXPECT_THAT(page, HasSubstr(cli({"methods", "--markdown"}).out)) << "run: kvscope-cli methods --markdown";
}

TEST_F(Cli, RunsTheGoldenPromptAndReportsTheContract) {
    const test::GoldenFile golden(test::source("tests/golden/golden_short.safetensors"));
    write("ids.json", json(golden.ints("prompt_ids")).dump());
    const Finished result = cli({"run", "--prompt-ids", path("ids.json"), "--method", "nosa", "--max-new-tokens", "25",
                                 "--ignore-eos", "--json", "--verify"});
    ASSERT_EQ(result.status, 0) << result.err;
    const json out = json::parse(result.out);
    EXPECT_EQ(out.at("generated_ids").get<std::vector<int>>(), golden.ints("nosa.generated_ids"));
    EXPECT_THAT(out.at("text").get<std::string>(), StartsWith("12377."));
    EXPECT_EQ(out.at("prompt_tokens"), 600);
    EXPECT_EQ(out.at("link"), "modelled");
    EXPECT_EQ(out.at("backend"), "cpu");
    EXPECT_EQ(out.at("verified"), true);
    for (const char* key : {"prefill_ms", "decode_ms", "tokens_per_s", "hits", "misses", "h2d_bytes", "exposed_ms"})
        EXPECT_TRUE(out.at(key).is_number()) << key;
    EXPECT_EQ(out.at("locality_mean"), 1.0); // the budget holds all blocks, so no step selects others
    EXPECT_EQ(out.at("locality_min"), 1.0);
}

TEST_F(Cli, RecordedNumbersAgreeBetweenJsonExportAndSql) {
    const std::string trace = path("a.kvtrace");
    const json out = record(trace);
    EXPECT_EQ(queryOne(trace, "select sum(hits) from v_step"), out["hits"]);
    EXPECT_EQ(queryOne(trace, "select sum(misses) from v_step"), out["misses"]);
    EXPECT_EQ(queryOne(trace, "select sum(h2d_bytes) from v_step"), out["h2d_bytes"]);
    EXPECT_EQ(queryOne(trace, "select count(*) from v_token"), 12);
    EXPECT_EQ(queryOne(trace, "select count(*) from runs where status = 'finished'"), 1);
    EXPECT_EQ(
        queryOne(trace,
                 "select max(abs(d)) from (select sum(duration_ns) - (select sum(total_ns) from v_breakdown b where "
                 "b.phase = s.phase) d from v_step s group by phase)"),
        0);
    const auto rows = lines(cli({"export", trace, "--what", "selections"}).out);
    ASSERT_GT(rows.size(), 1u);
    EXPECT_EQ(rows.front(), "run_id,step,layer,seq,kv_head,block,origin,hit");
    std::int64_t hits = 0;
    for (std::size_t i = 1; i < rows.size(); ++i) hits += rows[i].back() == '1';
    EXPECT_EQ(hits, out["hits"].get<std::int64_t>());
    EXPECT_EQ(std::int64_t(rows.size()) - 1, out["hits"].get<std::int64_t>() + out["misses"].get<std::int64_t>());
    for (const char* what : {"steps", "breakdown", "transfers", "tokens", "kernels"})
        for (const char* format : {"csv", "jsonl"}) {
            const Finished result = cli({"export", trace, "--what", what, "--format", format});
            EXPECT_EQ(result.status, 0) << what;
            if (std::string(format) == "csv") continue;
            for (const auto& line : lines(result.out))
                EXPECT_FALSE(json::parse(line, nullptr, false).is_discarded()) << line;
        }
    const Finished chrome = cli({"export", trace, "--format", "chrome-trace"});
    EXPECT_EQ(chrome.status, 0);
    EXPECT_GT(json::parse(chrome.out).at("traceEvents").size(), 100u);
    const json info = json::parse(cli({"info", trace, "--json"}).out);
    EXPECT_EQ(info.at("runs")[0].at("misses"), out["misses"]);
}

TEST_F(Cli, ReplayTriesOtherCachesOnTheRecordedSelections) {
    const std::string trace = path("a.kvtrace");
    const json out = record(trace);
    const json info = json::parse(cli({"info", trace, "--json"}).out).at("runs")[0];
    const int slots = info.at("device_slots");
    const Finished same = cli({"replay", trace, "--policy", "keep-selected", "--json"});
    ASSERT_EQ(same.status, 0) << same.err;
    const json recorded = json::parse(same.out);
    ASSERT_EQ(recorded.at("configs").size(), 1u);
    for (const char* key : {"hits", "misses", "h2d_bytes"}) EXPECT_EQ(recorded.at("recorded").at(key), out.at(key));
    EXPECT_EQ(recorded["tokens_per_s_is"], "predicted");
    EXPECT_EQ(recorded.at("reproduction").at("differing"), 0);
    EXPECT_GT(recorded["reproduction"].at("selections"), 0);
    EXPECT_EQ(recorded["configs"][0].at("cache_blocks"), slots);
    for (const char* key : {"hits", "misses", "h2d_bytes"}) EXPECT_EQ(recorded["configs"][0].at(key), out.at(key));
    EXPECT_NEAR(recorded["configs"][0].at("exposed_ms").get<double>(), out.at("exposed_ms").get<double>(), 1e-3);

    const std::string more = std::to_string(slots + 4);
    const Finished grid = cli({"replay", trace, "--cache-blocks", std::to_string(slots) + "," + more, "--policy",
                               "lru,arc,belady", "--link", "12.5,pcie4", "--json"});
    ASSERT_EQ(grid.status, 0) << grid.err;
    const json configs = json::parse(grid.out).at("configs");
    ASSERT_EQ(configs.size(), 12u);
    for (const json& config : configs) {
        std::vector<std::string> keys;
        for (const auto& [key, value] : config.items()) keys.push_back(key);
        EXPECT_THAT(keys,
                    ::testing::UnorderedElementsAre("policy", "cache_blocks", "link_gbps", "hits", "misses",
                                                    "compulsory", "h2d_bytes", "exposed_ms", "tokens_per_s",
                                                    "link_latency_us", "compute_ms", "block_size", "tokens", "warm"));
        const json& warm = config["warm"]; // without the one cold step
        EXPECT_LT(warm["hits"].get<int>() + warm["misses"].get<int>(),
                  config["hits"].get<int>() + config["misses"].get<int>());
        EXPECT_LT(warm["tokens"], config["tokens"]);
        EXPECT_NEAR(warm["hit_rate"].get<double>(),
                    warm["hits"].get<double>() / (warm["hits"].get<double>() + warm["misses"].get<double>()), 1e-12);
        for (const char* key : {"block_size", "tokens", "cache_blocks", "hits", "misses", "compulsory", "h2d_bytes"})
            EXPECT_TRUE(config.at(key).is_number_integer()) << key;
        EXPECT_EQ(config["hits"].get<int>() + config["misses"].get<int>(),
                  out["hits"].get<int>() + out["misses"].get<int>());
        EXPECT_GT(config["tokens_per_s"].get<double>(), 0);
    }
    EXPECT_EQ(configs[0]["policy"], "lru");
    EXPECT_EQ(configs[0]["link_gbps"], 12.5);
    EXPECT_GE(configs[0]["exposed_ms"], configs[1]["exposed_ms"]);
    EXPECT_EQ(configs[2]["cache_blocks"], slots + 4);
    EXPECT_EQ(lines(cli({"replay", trace}).out).size(), 6u + 7u)
        << "four lines about the run, a heading, each policy, three notes";

    const Finished curves = cli({"replay", trace, "--policy", "lru", "--cache-blocks", more, "--curves", "--json"});
    ASSERT_EQ(curves.status, 0) << curves.err;
    const json both = json::parse(curves.out);
    ASSERT_EQ(both.at("curves").size(), 2u);
    const json& lru = both["curves"][0];
    EXPECT_EQ(lru.at("policy"), "lru");
    EXPECT_EQ(lru.at("pools").size(), 16u) << "8 layers, 2 KV heads";
    const int first = lru.at("total").at("first_cache_blocks");
    EXPECT_EQ(lru["total"]["misses"][std::size_t(slots + 4 - first)], both["configs"][0]["misses"]);
    EXPECT_EQ(both["curves"][1].at("policy"), "belady");
    EXPECT_THAT(cli({"replay", trace, "--curves"}).out, HasSubstr("belady miss %"));

    const Finished wide = cli({"replay", trace, "--policy", "lru", "--lookahead", "1", "--accuracy", "0.5", "--windows",
                               "12", "--curves", "--sample", "1", "--json"});
    ASSERT_EQ(wide.status, 0) << wide.err;
    const json ahead = json::parse(wide.out);
    EXPECT_GT(ahead["configs"][0].at("prefetched").at("h2d_bytes"), ahead["configs"][0]["h2d_bytes"]);
    EXPECT_EQ(ahead.at("locality").at("working_set_blocks").size(), 12u);
    EXPECT_EQ(ahead["locality"].at("layers").size(), 8u);
    EXPECT_EQ(ahead.at("curves_are"), "sampled");

    const Finished shared = cli({"replay", trace, "--policy", "lru", "--shared-pool", "--latency", "0", "--json"});
    ASSERT_EQ(shared.status, 0) << shared.err;
    const json one = json::parse(shared.out);
    EXPECT_EQ(one.at("shared_pool"), true);
    EXPECT_EQ(one["configs"][0]["misses"],
              json::parse(cli({"replay", trace, "--policy", "lru", "--json"}).out)["configs"][0]["misses"])
        << "one sequence shares with nobody";
    EXPECT_EQ(one["configs"][0]["link_latency_us"], 0);

    record(trace, {"--method", "full"});
    const std::vector<std::pair<std::vector<std::string>, std::string>> mistakes{
        {{}, "attends every block"}, // the last run
        {{"--run", "3"}, "no run 3"},
        {{"--run", "1", "--cache-blocks", "2"}, "too few"},
        {{"--run", "1", "--cache-blocks", "many"}, "cache-blocks"},
        {{"--run", "1", "--policy", "luck"}, "known policies: keep-selected"},
        {{"--run", "1", "--link", "0"}, "unknown link '0'"}};
    for (const auto& [arguments, expected] : mistakes) {
        std::vector<std::string> command{"replay", trace};
        command.insert(command.end(), arguments.begin(), arguments.end());
        const Finished result = cli(command);
        EXPECT_NE(result.status, 0) << expected;
        EXPECT_THAT(result.err, HasSubstr(expected));
        EXPECT_EQ(lines(result.err).size(), 1u) << result.err;
        EXPECT_EQ(result.out, "") << expected;
    }
}

TEST_F(Cli, ASecondRunJoinsTheTraceAndOverwriteStartsAnew) {
    const std::string trace = path("a.kvtrace");
    EXPECT_EQ(record(trace).at("run_id"), 1);
    EXPECT_EQ(record(trace, {"--method", "infllmv2"}).at("run_id"), 2);
    EXPECT_EQ(queryOne(trace, "select count(*) from runs"), 2);
    EXPECT_EQ(record(trace, {"--overwrite"}).at("run_id"), 1);
    EXPECT_EQ(queryOne(trace, "select count(*) from runs"), 1);
}

TEST_F(Cli, BatchesAndRecordLevelsAreHonoured) {
    const std::string trace = path("a.kvtrace");
    const json out = record(trace, {"--batch", "3", "--record", "counters"});
    EXPECT_EQ(out.at("generated_ids").size(), 3u);
    EXPECT_EQ(out.at("text").size(), 3u);
    EXPECT_EQ(queryOne(trace, "select count(distinct seq) from v_locality"), 3);
    EXPECT_EQ(lines(cli({"export", trace, "--what", "selections"}).out).size(), 1u) << "counters hold no blocks";
}

TEST_F(Cli, ARunWithoutADecodeStepHasNoSpeed) {
    const auto result = cli({"run", "--prompt", "The cache", "--max-new-tokens", "1"});
    EXPECT_EQ(result.status, 0);
    EXPECT_THAT(result.err, HasSubstr("0 decode steps"));
    EXPECT_THAT(result.err, Not(HasSubstr("tokens/s")));
}

TEST_F(Cli, ANameIsNotLongerThanReadersShow) {
    for (const char* command : {"run", "load", "serve"}) {
        const auto result = cli({command, "--trace", path("a.kvtrace"), "--name", std::string(65537, 'x')});
        EXPECT_EQ(result.status, 1) << command;
        EXPECT_THAT(result.err, HasSubstr("--name has 65537 bytes")) << command;
        EXPECT_FALSE(fs::exists(path("a.kvtrace"))) << command;
    }
}

TEST_F(Cli, SamplingIsRepeatableBySeed) {
    const std::vector<std::string> base{"run", "--prompt",      "The cache", "--method", "full", "--max-new-tokens",
                                        "20",  "--temperature", "0.9",       "--json"};
    const auto ids = [&](const std::string& seed) {
        auto arguments = base;
        arguments.insert(arguments.end(), {"--seed", seed});
        return json::parse(cli(arguments).out).at("generated_ids");
    };
    EXPECT_EQ(ids("1"), ids("1"));
    EXPECT_NE(ids("1"), ids("2"));
}

TEST_F(Cli, EveryMistakeGetsOneSentenceThatNamesItAndTheMend) {
    write("text.txt", "hello");
    write("bad.json", "[1, 2");
    write("mixed.json", "[[1], 2]");
    write("text.kvtrace", "this is no database, but it is long enough to be read as one, if one tried hard enough");
    fs::create_directory(path("empty-model"));
    const std::vector<std::string> run{
        "run", "--prompt",
        "one block is sixty-four tokens, so this prompt must be longer than that, or a device pool of a single slot "
        "per KV head would be enough for it; sixty-four tokens of this model are some thirty words, and here "
        "are quite a few more of them, to be on the safe side of the second block"};
    const auto with = [&](std::vector<std::string> more) {
        auto all = run;
        all.insert(all.end(), more.begin(), more.end());
        return all;
    };
    const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
        {{}, "--help"},
        {{"fly"}, "--help"},
        {{"run"}, "--prompt"},
        {{"run", "--prompt", "a", "--prompt-needle", "600"}, "more than one kind"},
        {{"run", "--prompt-file", path("none.txt")}, "none.txt"},
        {{"run", "--prompt-ids", path("bad.json")}, "bad.json"},
        {{"run", "--prompt-ids", path("mixed.json")}, "mixed"},
        {{"run", "--prompt-needle", "50"}, "tokens"},
        {{"replay", path("none.kvtrace"), "--accuracy", "0.5"}, "--lookahead"},
        {{"replay", path("none.kvtrace"), "--sample", "0.5"}, "--curves"},
        {{"replay", path("none.kvtrace"), "--model", path("nowhere")}, "--check"},
        {{"replay", path("none.kvtrace"), "--backend", "cpu"}, "--check"},
        {with({"--model", path("nowhere")}), "nosa-tiny"},
        {with({"--model", path("empty-model")}), "config.json"},
        {with({"--model", path("text.txt")}), "text.txt"},
        {with({"--method", "magic"}), "known methods"},
        {with({"--set", "total_blocks"}), "key=value"},
        {with({"--set", "colour=red"}), "unknown parameter 'colour'"},
        {with({"--set", "total_blocks=1e9"}), "whole number from 1 to 65536"},
        {with({"--max-new-tokens", "-4"}), "at least 1"},
        {with({"--max-new-tokens", "seven"}), "max-new-tokens"},
        {with({"--max-new-tokens", "99999"}), "16384"},
        {with({"--temperature", "-1"}), "temperature"},
        {with({"--backend", "cuda"}), "--backend cpu"},
        {with({"--backend", "cuda", "--trace", path("gpu.kvtrace")}), "--backend cpu"},
        {with({"--backend", "abacus"}), "abacus"},
        {with({"--link", "carrier-pigeon"}), "pcie4"},
        {with({"--link", "0"}), "unknown link '0'"},
        {with({"--device-kv", "lots"}), "256MiB"},
        {with({"--device-kv", "1"}), "at least --device-kv"},
        {with({"--no-offload", "--cache-policy", "lru"}), "no effect with --no-offload"},
        {with({"--batch", "100000"}), "256"},
        {with({"--trace", path("most.kvtrace"), "--record", "most"}), "selections"},
        {with({"--trace", path("no/such/folder/a.kvtrace")}), "a.kvtrace"},
        {with({"--trace", path("text.kvtrace")}), "text.kvtrace"},
        {{"export", path("none.kvtrace"), "--what", "steps"}, "none.kvtrace"},
        {{"export", path("text.kvtrace"), "--what", "steps"}, "text.kvtrace"},
        {{"info", path("text.kvtrace")}, "text.kvtrace"},
        {{"replay"}, "trace"},
        {{"replay", path("none.kvtrace")}, "none.kvtrace"},
        {{"replay", path("text.kvtrace")}, "text.kvtrace"},
        {{"info", path("none")}, "none"},
        {{"bench", "luck"}, "known benchmarks"},
    };
    ::setenv("CUDA_VISIBLE_DEVICES", "-1", 1); // hides the GPU of a machine that has one
    for (const auto& [arguments, expected] : cases) {
        const Finished result = cli(arguments);
        std::string shown;
        for (const auto& argument : arguments) shown += argument + " ";
        EXPECT_TRUE(result.status == 1 || result.status == 2) << shown << "exit " << result.status;
        EXPECT_THAT(result.err, HasSubstr(expected)) << shown;
        EXPECT_EQ(lines(result.err).size(), 1u) << shown << result.err;
        EXPECT_EQ(result.out, "") << shown;
    }
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    const std::string trace = path("a.kvtrace");
    record(trace);
    EXPECT_THAT(cli({"export", trace}).err, HasSubstr("--what"));
    EXPECT_THAT(cli({"export", trace, "--what", "dreams"}).err, HasSubstr("selections"));
    EXPECT_THAT(cli({"export", trace, "--what", "steps", "--format", "xml"}).err, HasSubstr("csv"));
    EXPECT_THAT(cli({"export", trace, "--what", "steps", "--run", "7"}).err, HasSubstr("7"));
    EXPECT_THAT(cli({"export", trace, "--what", "steps", "-o", path("no/such/out.csv")}).err, HasSubstr("out.csv"));
}

TEST_F(Cli, ABenchmarksUnknownPartIsRefused) {
    const Finished result = cli({"bench", "gpu-kernels", "--set", "only=gather"});
    EXPECT_NE(result.status, 0);
    EXPECT_THAT(result.err, AnyOf(HasSubstr("no part gather"), HasSubstr("known benchmarks"))); // built without CUDA
}

TEST_F(Cli, BenchHandsItsArgumentsOn) {
    const Finished help = cli({"bench", "--help"});
    EXPECT_EQ(help.status, 0) << help.err;
    EXPECT_THAT(help.out, HasSubstr("kvscope-bench"));
    EXPECT_THAT(help.out, HasSubstr("--set"));
    const Finished wrong = cli({"bench", "cpu-decode", "--set", "nothing"});
    EXPECT_EQ(wrong.status, 1);
    EXPECT_THAT(wrong.err, HasSubstr("cannot read --set 'nothing'"));
}

TEST_F(Cli, BenchWithoutItsProgramSaysHowToBuildIt) {
    const std::string alone = path("kvscope-cli");
    fs::copy_file(test::kCommandLine, alone);
    const Finished result = test::runProcess({alone, "bench"});
    EXPECT_EQ(result.status, 1);
    EXPECT_THAT(result.err, HasSubstr(path("kvscope-bench") + " cannot be started: No such file"));
    EXPECT_THAT(result.err, HasSubstr("--target kvscope-bench"));
}

TEST_F(Cli, TokenizeShowsIdsAndPiecesOfAFolderWithoutWeights) {
    const fs::path golden = test::source("tests/golden/tokenizers");
    fs::copy_file(golden / "minicpm.json", folder_ / "tokenizer.json");
    const auto run = [&](std::vector<std::string> more) {
        std::vector<std::string> arguments{"tokenize", "--model", folder_.string()};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return cli(arguments);
    };
    const Finished plain = run({"--text", "the cache \xE5\xAD\x97", "--json"});
    ASSERT_EQ(plain.status, 0) << plain.err;
    const json shown = json::parse(plain.out);
    EXPECT_EQ(shown.at("ids").front(), 1);
    EXPECT_EQ(shown.at("ids").size(), shown.at("pieces").size());
    EXPECT_EQ(shown.at("decoded"), "the cache \xE5\xAD\x97");
    EXPECT_THAT(run({"--text", "a", "--chat"}).err, HasSubstr("has no chat template"));
    write("chat_template.jinja",
          "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}");
    const Finished chat = run({"--text", "hi", "--system", "brief", "--chat", "--json"});
    ASSERT_EQ(chat.status, 0) << chat.err;
    EXPECT_EQ(json::parse(chat.out).at("text"),
              "<|im_start|>system\nbrief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n");
    EXPECT_NE(json::parse(chat.out).at("ids").front(), 1) << "a template writes its own BOS";
    EXPECT_THAT(run({}).err, HasSubstr("give --text or --file"));
    EXPECT_THAT(run({"--text", "a", "--system", "b"}).err, HasSubstr("--chat"));
    EXPECT_THAT(run({"--file", path("none")}).err, HasSubstr("cannot read"));
}

TEST_F(Cli, AFullDiskEndsInASentenceAndKeepsWhatWasRecorded) {
    const std::string trace = path("a.kvtrace");
    // A file-size limit fails writes like a full disk does.
    const Finished result =
        test::runProcess({"/bin/bash", "-c",
                          "trap '' XFSZ; ulimit -f 800; exec " + std::string(test::kCommandLine) +
                              " run --prompt-needle 1200 --max-new-tokens 3000 --ignore-eos --json --trace " + trace});
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(lines(result.err).size(), 1u) << result.err;
    EXPECT_THAT(result.err, HasSubstr("a.kvtrace"));
    const json info = json::parse(cli({"info", trace, "--json"}).out);
    EXPECT_GE(info.at("runs").size(), 1u);
}

TEST_F(Cli, ADiskThatIsFullAtOnceGetsNoEmptyTrace) {
    const std::string trace = path("a.kvtrace");
    const Finished result = test::runProcess({"/bin/bash", "-c",
                                              "trap '' XFSZ; ulimit -f 2; exec " + std::string(test::kCommandLine) +
                                                  " run --prompt-needle 300 --max-new-tokens 4 --trace " + trace});
    EXPECT_EQ(result.status, 1);
    EXPECT_EQ(lines(result.err).size(), 1u) << result.err;
    EXPECT_THAT(result.err, HasSubstr("a.kvtrace"));
    for (const char* suffix : {"", "-wal", "-shm", "-journal", "-lock"})
        EXPECT_FALSE(std::filesystem::exists(trace + suffix)) << suffix;
}

TEST_F(Cli, ADiskThatIsFullAtOnceKeepsASymbolicLink) {
    const std::string link = path("link.kvtrace"), target = path("target.kvtrace");
    std::filesystem::create_symlink(target, link);
    const Finished result = test::runProcess({"/bin/bash", "-c",
                                              "trap '' XFSZ; ulimit -f 2; exec " + std::string(test::kCommandLine) +
                                                  " run --prompt-needle 300 --max-new-tokens 4 --trace " + link});
    EXPECT_EQ(result.status, 1);
    EXPECT_TRUE(std::filesystem::is_symlink(link));
    for (const char* suffix : {"", "-wal", "-shm", "-journal"})
        EXPECT_FALSE(std::filesystem::exists(target + suffix)) << suffix;
}

TEST_F(Cli, InterruptKeepsTheTraceAndSaysStopped) {
    const std::string trace = path("a.kvtrace");
    test::Process process({test::kCommandLine, "run", "--prompt-needle", "1200", "--max-new-tokens", "14000",
                           "--ignore-eos", "--trace", trace});
    ASSERT_TRUE(process.waitForOutput(" ")); // the first text has come: the run decodes
    process.signal(SIGINT);
    const Finished result = process.wait();
    EXPECT_EQ(result.status, 130) << result.err;
    EXPECT_EQ(queryOne(trace, "select count(*) from runs where status = 'stopped'"), 1);
    EXPECT_GT(queryOne(trace, "select count(*) from v_step"), 0);
}

TEST_F(Cli, TheCommandLineNeedsNoQt) {
    const Finished needed =
        test::runProcess({"/bin/sh", "-c", "objdump -p " + std::string(test::kCommandLine) + " | grep NEEDED"});
    ASSERT_EQ(needed.status, 0);
    EXPECT_THAT(needed.out, ::testing::Not(HasSubstr("Qt")));
    EXPECT_THAT(needed.out, ::testing::Not(HasSubstr("libcuda")));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
