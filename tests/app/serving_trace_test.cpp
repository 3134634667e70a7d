// A serving run as a trace: what `load` prints follows from the tables that it records.
#include "tests/app/cli_fixture.h"
#include "tests/core/tiny_checkpoint.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <map>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using ::testing::HasSubstr;

class ServingTraceFile : public test::CliFixture {
protected:
    /// Twelve requests in a third of a second: more than two rows can take at once. The last one can never fit.
    std::vector<std::string> command(std::vector<std::string> more = {}, const char* deviceKv = "64M") const {
        std::ofstream out(path("w.jsonl"));
        for (int i = 0; i < 12; ++i)
            out << json{{"timestamp", 30 * i},
                        {"input_length", i == 11 ? 9000 : 100 + 330 * (i % 4)},
                        {"output_length", 3 + i},
                        {"class", i % 2 == 0 ? "even" : "odd"},
                        {"seed", i}}
                       .dump()
                << "\n";
        std::vector<std::string> all{"load",
                                     "--workload",
                                     path("w.jsonl"),
                                     "--warm-up",
                                     "0",
                                     "--threads",
                                     "1",
                                     "--scratch",
                                     "8M",
                                     "--host-kv",
                                     "256M",
                                     "--device-kv",
                                     deviceKv,
                                     "--warm-up-seconds",
                                     "0",
                                     "--knob",
                                     "rows=2",
                                     "--trace",
                                     path("s.kvtrace"),
                                     "--json"};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    std::vector<json> rows(const std::string& what) const {
        const test::Finished out =
            test::cli({"export", path("s.kvtrace"), "--what", what, "--format", "jsonl", "--run", "1"});
        EXPECT_EQ(out.status, 0) << out.err;
        std::vector<json> all;
        std::istringstream lines(out.out);
        for (std::string line; std::getline(lines, line);) all.push_back(json::parse(line));
        return all;
    }
};

/// Linear between order statistics, as numpy does.
double quantile(std::vector<double> samples, double p) {
    std::sort(samples.begin(), samples.end());
    const double at = p * double(samples.size() - 1);
    const std::size_t low = std::size_t(at);
    const double high = samples[std::min(low + 1, samples.size() - 1)];
    return samples[low] + (high - samples[low]) * (at - double(low));
}

TEST_F(ServingTraceFile, HoldsWhatLoadPrints) {
    const test::Finished ran = test::cli(command());
    ASSERT_EQ(ran.status, 0) << ran.err;
    const json point = json::parse(ran.out).at("points").at(0);
    std::vector<json> requests = rows("requests");
    // The workload is read once more until the window's requests have ended.
    ASSERT_GE(requests.size(), 12u);
    requests.resize(12);
    std::vector<double> ttft, queue, gaps;
    std::map<std::int64_t, std::vector<double>> tokens;
    const std::vector<json> members = rows("members");
    for (const json& member : members)
        if (!member.at("token_ns").is_null())
            tokens[member["request"]].push_back(member["token_ns"].get<double>() / 1e6);
    int finished = 0;
    for (const json& request : requests) {
        const std::int64_t number = request.at("request");
        EXPECT_EQ(request.at("class"), number % 2 == 0 ? "even" : "odd");
        if (number == 11) {
            EXPECT_EQ(request.at("status"), "refused");
            EXPECT_THAT(request.at("reason").get<std::string>(), HasSubstr("can never run"));
            EXPECT_TRUE(request.at("first_token_ns").is_null());
            continue;
        }
        EXPECT_EQ(request.at("status"), "length") << number;
        ++finished;
        ttft.push_back(request.at("ttft_ns").get<double>() / 1e6);
        queue.push_back(request.at("queue_ns").get<double>() / 1e6);
        const std::vector<double>& times = tokens.at(number);
        ASSERT_EQ(times.size(), request.at("output_tokens").get<std::size_t>()) << number;
        EXPECT_NEAR(times.front(), request["first_token_ns"].get<double>() / 1e6, 1e-6);
        for (std::size_t i = 1; i < times.size(); ++i) gaps.push_back(times[i] - times[i - 1]);
    }
    EXPECT_EQ(point.at("requests").at("finished"), finished);
    // Gaps are kept as float32.
    EXPECT_EQ(point.at("requests").at("refused"), 1);
    EXPECT_NEAR(point.at("ttft_ms").at("median"), quantile(ttft, 0.5), 1e-4);
    EXPECT_NEAR(point.at("queue_ms").at("median"), quantile(queue, 0.5), 1e-4);
    EXPECT_NEAR(point.at("tbt_ms").at("median"), quantile(gaps, 0.5), 1e-4);
    EXPECT_NEAR(point.at("tbt_ms").at("p99_interpolated"), quantile(gaps, 0.99), 1e-4);
    EXPECT_EQ(point.at("tbt_ms").at("samples"), gaps.size());
}

TEST_F(ServingTraceFile, SpansOfARequestFollowEachOtherFromArrivalToEnd) {
    ASSERT_EQ(test::cli(command({"--knob", "cache=global-lru", "--rate", "20,40"}, "12M")).status, 0);
    std::map<std::int64_t, std::vector<json>> spans;
    for (const json& span : rows("request-spans")) spans[span["request"]].push_back(span);
    std::map<std::int64_t, std::int64_t> reads; // prompt tokens read in layer 0
    std::map<std::pair<std::int64_t, std::int64_t>, int> places;
    for (const json& member : rows("members")) {
        EXPECT_EQ((++places[{member["iteration"], member["row"]}]), 1);
        if (member.at("kind") == "prefill" && member.at("layer_from") == 0)
            reads[member["request"]] += member.at("tokens").get<int>();
    }
    for (const json& request : rows("requests")) {
        if (request["end_ns"].is_null()) continue; // behind the window
        const auto& of = spans.at(request["request"]);
        EXPECT_EQ(of.front().at("start_ns"), request.at("arrival_ns"));
        EXPECT_EQ(of.back().at("end_ns"), request.at("end_ns"));
        EXPECT_EQ(of.front().at("state"), "queued");
        std::int64_t paused = 0;
        for (std::size_t i = 0; i < of.size(); ++i) {
            if (i > 0) {
                EXPECT_EQ(of[i].at("start_ns"), of[i - 1].at("end_ns"));
            }
            EXPECT_LE(of[i].at("start_ns"), of[i].at("end_ns"));
            if (of[i].at("state") == "paused")
                paused += of[i]["end_ns"].get<std::int64_t>() - of[i]["start_ns"].get<std::int64_t>();
        }
        EXPECT_EQ(request.at("paused_ns"), paused);
        if (request.at("status") == "length") {
            EXPECT_GE(reads[request["request"]], request.at("prompt_tokens")) << request.dump();
        }
    }
    std::int64_t end = 0, number = 0;
    for (const json& iteration : rows("iterations")) {
        EXPECT_EQ(iteration.at("iteration"), number++);
        EXPECT_GE(iteration.at("start_ns"), end) << "iterations do not overlap";
        end = iteration["start_ns"].get<std::int64_t>() + iteration["duration_ns"].get<std::int64_t>();
        EXPECT_LE(iteration["decode_ns"].get<std::int64_t>() + iteration["prefill_ns"].get<std::int64_t>(),
                  iteration.at("duration_ns"));
        EXPECT_GE(iteration.at("decode_rows").get<int>() + iteration.at("prefill_requests").get<int>(), 1);
    }
    EXPECT_GT(number, 10);
    EXPECT_EQ(json::parse(test::cli({"info", path("s.kvtrace"), "--json"}).out).at("runs").size(), 2u)
        << "a run for each rate";
    const test::Finished checked = test::cli({"check", path("s.kvtrace")});
    EXPECT_EQ(checked.status, 0) << checked.out;
}

/// Logits that are not finite: no member of a request that fails has a token, and the trace obeys its rules.
TEST_F(ServingTraceFile, RequestsThatFailMadeNoToken) {
    test::TinyCheckpoint checkpoint("F32");
    for (char& byte : checkpoint.tensors.at("model.norm.weight").bytes) byte = char(0xFF); // NaN
    std::filesystem::create_directory(path("model"));
    checkpoint.writeTo(path("model"));
    std::ofstream(path("costs.json")) << test::cli({"simulate", "--print-costs"}).out;
    const test::Finished ran =
        test::cli(command({"--model", path("model"), "--method", "full", "--costs", path("costs.json")}));
    ASSERT_EQ(ran.status, 0) << ran.err;
    const json point = json::parse(ran.out).at("points").at(0);
    EXPECT_GT(point.at("failed"), 0);
    EXPECT_THAT(point.at("first_failure").get<std::string>(), HasSubstr("not all finite numbers"));
    for (const json& member : rows("members")) EXPECT_TRUE(member.at("token_ns").is_null());
    const test::Finished checked = test::cli({"check", path("s.kvtrace")});
    EXPECT_EQ(checked.status, 0) << checked.out;
}

TEST_F(ServingTraceFile, IsRefusedWhereItWouldRecordNothing) {
    EXPECT_THAT(test::cli(command({"--search", "--rungs", "all"})).err, HasSubstr("--trace"));
    EXPECT_THAT(test::cli({"load", "--workload", "longmix", "--overwrite"}).err, HasSubstr("--trace"));
    const test::Finished none = test::cli({"load", "--workload", "longmix", "--trace", path("no/folder.kvtrace")});
    EXPECT_NE(none.status, 0);
}

/// The blocks of every selection of a request, by (decode step of the request, layer, KV head).
using Blocks = std::map<std::array<int, 3>, std::vector<int>>;

TEST_F(ServingTraceFile, FollowsEveryRequestThroughItsSelections) {
    for (const char* cache : {"cache=partition", "cache=global-lru"}) {
        SCOPED_TRACE(cache);
        const test::Finished ran =
            test::cli(command({"--record", "selections", "--overwrite", "--knob", cache, "--method", "quest", "--set",
                               "total_blocks=8", "--set", "block_size=16"}));
        ASSERT_EQ(ran.status, 0) << ran.err;
        const test::Finished checked = test::cli({"check", path("s.kvtrace")});
        EXPECT_EQ(checked.status, 0) << checked.out;
        std::map<std::pair<int, int>, int> requestOf; // by step and row
        std::map<int, std::vector<int>> stepsOf;      // of a request
        for (const json& member : rows("members"))
            if (member.at("kind") == "decode") {
                requestOf[{member["iteration"], member["row"]}] = member["request"];
                stepsOf[member["request"]].push_back(member["iteration"]);
            }
        std::map<int, Blocks> served;
        for (const json& row : rows("selections")) {
            const int step = row.at("step"), request = requestOf.at({step, row["seq"]});
            const std::vector<int>& steps = stepsOf.at(request);
            const int number = int(std::find(steps.begin(), steps.end(), step) - steps.begin());
            served[request][{number, row["layer"], row["kv_head"]}].push_back(row["block"]);
        }
        EXPECT_GE(served.size(), 11u) << "all but the refused one";
        std::map<int, std::pair<int, int>> sums; // hits and misses
        for (const json& selection : rows("served-selections")) {
            auto& [hits, misses] = sums[selection["request"]];
            hits += selection["hits"].get<int>(), misses += selection["misses"].get<int>();
        }
        std::int64_t misses = 0;
        for (const json& request : rows("requests")) {
            if (request["output_tokens"] < 2) continue;
            EXPECT_EQ(sums.at(request["request"]).first, request["hits"]) << request;
            EXPECT_EQ(sums.at(request["request"]).second, request["misses"]) << request;
            misses += request["misses"].get<int>();
        }
        EXPECT_GT(misses, 0);
        std::map<std::int64_t, std::string> events;
        for (const json& event : rows("row-events")) events[event["request"]] += event["kind"].get<std::string>() + " ";
        for (int request = 0; request < 11; ++request)
            EXPECT_THAT(events[request], ::testing::StartsWith("admitted ")) << request;
        EXPECT_EQ(events.count(11), 0u) << "it was refused";

        // A request has an empty cache when it gets its row, whoever had the row before.
        const json replayed = jsonOf({"replay", path("s.kvtrace"), "--policy", "lru", "--json"});
        const bool pooled = std::string(cache) == "cache=global-lru";
        EXPECT_EQ(replayed.contains("reproduction"), !pooled);
        if (!pooled) {
            EXPECT_EQ(replayed["reproduction"]["differing"], 0);
            EXPECT_GT(replayed["reproduction"]["selections"], 1000);
        }
        const json device =
            jsonOf({"replay", path("s.kvtrace"), "--pool", "device", "--cache-blocks", "200,100000", "--json"});
        EXPECT_EQ(device.at("pool"), "device");
        EXPECT_LE(device["device_demand"]["largest_layer_blocks"], device["device_demand"]["largest_step_blocks"]);
        const json& configs = device.at("configs");
        ASSERT_EQ(configs.size(), 4u) << "lru and belady, two sizes each";
        for (const json& config : configs)
            EXPECT_EQ(config["hits"].get<int>() + config["misses"].get<int>(),
                      replayed["recorded"]["hits"].get<int>() + replayed["recorded"]["misses"].get<int>());
        EXPECT_GE(configs[0]["misses"], configs[1]["misses"]);
        EXPECT_GE(configs[0]["misses"], configs[2]["misses"]) << "belady misses no more";
        EXPECT_EQ(configs[1]["misses"], configs[1]["compulsory"]) << "no request was paused";
        EXPECT_THAT(test::cli({"replay", path("s.kvtrace"), "--pool", "device"}).out,
                    HasSubstr("one pool for the device"));
        EXPECT_THAT(test::cli({"replay", path("s.kvtrace"), "--pool", "device", "--cache-blocks", "1"}).err,
                    HasSubstr("are too few"));
        EXPECT_THAT(test::cli({"replay", path("s.kvtrace"), "--check"}).err, HasSubstr("served requests"));
    }
}

TEST_F(ServingTraceFile, HasStepsOnlyWhereTheyAreAskedFor) {
    ASSERT_EQ(test::cli(command()).status, 0);
    EXPECT_TRUE(rows("steps").empty());
    EXPECT_FALSE(rows("row-events").empty());
    ASSERT_EQ(test::cli(command({"--record", "counters", "--overwrite"})).status, 0);
    EXPECT_FALSE(rows("steps").empty());
    EXPECT_FALSE(rows("served-selections").empty());
    EXPECT_TRUE(rows("selections").empty()) << "there are no blocks";
    EXPECT_EQ(test::cli({"check", path("s.kvtrace")}).status, 0);
    const json info = jsonOf({"info", path("s.kvtrace")}).at("runs").at(0);
    EXPECT_EQ(info.at("steps"), rows("steps").size());
    EXPECT_EQ(info.at("decode_steps"), info.at("steps"));
    const std::size_t iterations = rows("iterations").size();
    EXPECT_GT(iterations, rows("steps").size()) << "the first iteration reads a prompt and has no step";
    EXPECT_EQ(info.at("serving").at("iterations"), iterations);
    const std::string text = test::cli({"info", path("s.kvtrace")}).out;
    EXPECT_THAT(text, HasSubstr(fmt::format("  serving\n    requests                 {}\n",
                                            info.at("serving").at("requests").get<int>())));
    EXPECT_THAT(text, ::testing::ContainsRegex("    ttft_ms                  samples [0-9]+, median "));
    const json listed = jsonOf({"info", folder_.string()}).at("runs").at(0);
    EXPECT_EQ(listed.at("iterations"), iterations);
    EXPECT_TRUE(listed.at("steps").is_null()) << "a list counts no rows";
    EXPECT_THAT(test::cli({"info", folder_.string()}).out, HasSubstr(std::to_string(iterations) + " iterations"));
    EXPECT_TRUE(info.at("prefill_ms").is_null());
    EXPECT_TRUE(info.at("exposed_ms").is_null()) << "nobody measured it";
    EXPECT_THAT(info.at("not_known").get<std::string>(), HasSubstr("stage"));
    EXPECT_TRUE(info.at("components").is_null()) << "nor were there stages";
    EXPECT_NE(test::cli({"load", "--workload", "longmix", "--record", "selections"}).status, 0) << "--trace is missing";
    ASSERT_EQ(test::cli(command({"--record", "full", "--overwrite"})).status, 0);
    EXPECT_FALSE(rows("selections").empty());
    EXPECT_EQ(test::cli({"check", path("s.kvtrace")}).status, 0);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
