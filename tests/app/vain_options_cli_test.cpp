// Options that change nothing are refused with one sentence, and the command in a report is never refused for one.
#include "core/model/bundled_models.h"
#include "core/model/model.h"
#include "core/select/method.h"
#include "profiler/report/reproduce.h"
#include "profiler/report/run_data.h"
#include "tests/app/cli_fixture.h"
#include "tests/support/places.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <thread>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;
using test::cli;
using test::Finished;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class VainOptions : public test::CliFixture {
protected:
    static std::string refusalOfRun(std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), {"run", "--prompt", "one two", "--max-new-tokens", "2"});
        return refusal(arguments);
    }
};

TEST_F(VainOptions, OfRunAreRefused) {
    for (const char* option : {"--top-k", "--top-p", "--seed"}) {
        EXPECT_THAT(refusalOfRun({option, "1"}), HasSubstr(std::string(option) + " has no effect at temperature 0"));
        EXPECT_THAT(refusalOfRun({option, "1", "--temperature", "0"}), HasSubstr("give --temperature a number"));
    }
    EXPECT_THAT(refusalOfRun({"--temperature", "1", "--seed", "-1"}), HasSubstr("-1 is negative"));
    EXPECT_THAT(refusalOfRun({"--link", "pcie4", "--no-offload"}), HasSubstr("--link has no effect with --no-offload"));
    EXPECT_THAT(refusalOfRun({"--cache-policy", "keep-selected", "--no-offload"}),
                HasSubstr("--cache-policy has no effect with --no-offload"));
    EXPECT_THAT(refusalOfRun({"--link", "pcie4", "--method", "h2o"}),
                HasSubstr("--link has no effect with method h2o, which keeps every block on the device"));
    if (std::filesystem::exists(test::source("resources/models/losa-tiny/model.safetensors"))) {
        EXPECT_THAT(refusalOfRun({"--link", "pcie4", "--method", "quest", "--model", "losa-tiny"}),
                    HasSubstr("--link has no effect on a diffusion model"));
        EXPECT_THAT(refusalOfRun({"--method", "losa", "--model", "losa-tiny", "--set", "fetch=ahead"}),
                    HasSubstr("the parameter 'fetch' of method losa has no effect without --device-kv"));
    }
    EXPECT_THAT(refusalOfRun({"--link", "pcie4", "--backend", "cuda"}), HasSubstr("measures the GPU's own link"));
    for (const std::vector<std::string>& option :
         std::vector<std::vector<std::string>>{{"--no-cuda-calls"}, {"--pcie-counters", "off"}}) {
        std::vector<std::string> recorded{"--trace", path("cpu.kvtrace")};
        recorded.insert(recorded.end(), option.begin(), option.end());
        EXPECT_THAT(refusalOfRun(recorded), HasSubstr(option.front() + " has no effect with --backend cpu"));
    }
    EXPECT_THAT(refusalOfRun({"--products", "built-in"}), HasSubstr("--products has no effect with --backend cpu"));
    EXPECT_THAT(refusalOfRun({"--method", "infllm", "--set", "cached_blocks=40", "--no-offload"}),
                HasSubstr("the parameter 'cached_blocks' of method infllm has no effect with --no-offload"));
    EXPECT_THAT(refusalOfRun({"--method", "infllm", "--set", "cached_blocks=40", "--device-kv", "60"}),
                HasSubstr("the parameter 'cached_blocks' of method infllm has no effect with --device-kv"));
    EXPECT_THAT(refusalOfRun({"--method", "sparda", "--set", "offload_layer0=false", "--no-offload"}),
                HasSubstr("the parameter 'offload_layer0' of method sparda has no effect with --no-offload"));
}

TEST_F(VainOptions, AreTakenWhereTheyHaveAnEffect) {
    for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{
             {"--temperature", "0.5", "--top-k", "4", "--top-p", "0.9", "--seed", "3"},
             {"--link", "pcie4", "--cache-policy", "keep-selected"},
             {"--method", "infllm", "--set", "cached_blocks=40"}}) {
        std::vector<std::string> arguments{"run", "--prompt", "one two", "--max-new-tokens", "2"};
        arguments.insert(arguments.end(), options.begin(), options.end());
        const Finished result = cli(arguments);
        EXPECT_EQ(result.status, 0) << result.err;
    }
}

TEST_F(VainOptions, OfWhatIsLeftOutAreRefused) {
    const auto refused = [](std::vector<std::string> command, const char* option, const char* value, const char* why) {
        command.emplace_back(option);
        if (*value != 0) command.emplace_back(value);
        EXPECT_THAT(refusal(command), HasSubstr(std::string(option) + " has no effect " + why));
    };
    for (const char* option : {"--needles", "--depths", "--seed", "--link"})
        refused({"eval", "--prompts", "0"}, option, "1", "with --prompts 0");
    refused({"eval", "--prompts", "0"}, "--decode-tokens", "9", "with --prompts 0");
    refused({"eval", "--text-tokens", "0"}, "--text", "file", "with --text-tokens 0");
    refused({"eval", "--text-tokens", "0"}, "--no-oracle", "", "with --text-tokens 0");
    refused({"eval", "--backend", "cuda"}, "--link", "pcie4", "with --backend cuda");
    refused({"eval", "--methods", "full,h2o"}, "--link", "pcie4", "with methods that keep every block");
    for (const char* option : {"--teacher", "--batch", "--learning-rate"}) {
        const char* value = std::string_view(option) == "--teacher" ? "attention" : "1";
        refused({"calibrate", "--what", "channels"}, option, value, "with --what channels");
        refused({"calibrate", "--what", "retaining"}, option, value, "with --what retaining");
    }
    refused({"calibrate", "--what", "forecast"}, "--width", "8", "with --what forecast");
    refused({"calibrate", "--what", "channels"}, "--steps", "8", "with --what channels");
    refused({"calibrate", "--what", "products"}, "--texts", "8", "with --what products");
    refused({"calibrate", "--what", "channels"}, "--queries", "8", "with --what channels");
    for (const char* command : {"load", "simulate"}) {
        refused({command, "--workload", "longmix"}, "--burst", "0.5", "without --arrivals gamma");
        refused({command, "--workload", path("w.jsonl")}, "--requests", "5", "on the workload of a file");
        refused({command, "--workload", path("w.jsonl"), "--arrivals", "poisson"}, "--spread", "5", "where --arrivals");
        refused({command, "--workload", "longmix"}, "--spread", "5", "on longmix, whose arrivals are drawn");
        EXPECT_THAT(refusal({command, "--workload", "longmix", "--arrivals", "recorded"}),
                    HasSubstr("longmix has no recorded arrivals"));
    }
    refused({"simulate", "--workload", "longmix", "--rule", "attainment"}, "--queue", "5", "with --rule attainment");
    refused({"simulate", "--workload", "longmix"}, "--attainment", "0.5", "with --rule mean-queue");
    EXPECT_THAT(refusal({"simulate", "--list-knobs", "--workload", "longmix"}), HasSubstr("excludes"));
    EXPECT_THAT(refusal({"simulate", "--print-costs", "--set", "rows=8"}), HasSubstr("excludes"));
    EXPECT_THAT(refusal({"simulate", "--workload", "longmix", "--write", path("w"), "--slo", "tbt=5"}),
                HasSubstr("excludes"));
    EXPECT_THAT(refusal({"serve", "--list-limits", "--port", "0"}), HasSubstr("excludes"));
    EXPECT_THAT(refusal({"methods", "--json", "--markdown"}), HasSubstr("excludes"));
    EXPECT_THAT(refusal({"methods", "msaa"}), HasSubstr("unknown method 'msaa'"));
    EXPECT_EQ(cli({"simulate", "--list-knobs", "--json"}).status, 0);
    EXPECT_EQ(cli({"simulate", "--print-costs"}).status, 0);
    EXPECT_EQ(cli({"serve", "--list-limits"}).status, 0);
}

TEST_F(VainOptions, ValuesThatWouldBecomeOthersAreRefused) {
    EXPECT_THAT(refusalOfRun({"--temperature", "1", "--seed", "18446744073709551616"}),
                HasSubstr("too large: the largest is 18446744073709551615"));
    for (const char* link : {"1e-320", "0", "1e7"}) // times beyond 64 bits would become negative ones
        EXPECT_THAT(refusalOfRun({"--link", link}), HasSubstr("unknown link '" + std::string(link) + "'"));
    EXPECT_THAT(refusal({"replay", "a.kvtrace", "--curves", "--sample", "0"}), HasSubstr("--sample: 0 is not above 0"));
    EXPECT_THAT(refusal({"check", "a.kvtrace", "--limit", "-1"}), HasSubstr("--limit: -1 is negative"));
    EXPECT_THAT(refusal({"roofline", "--method", "full", "--slots", "3"}), HasSubstr("--slots has no effect"));
    EXPECT_THAT(refusal({"roofline", "--method", "full", "--hit-rate", "bound"}),
                HasSubstr("--hit-rate has no effect"));
}

/// The names of a command's options, as --help shows them, that have a value of one of these types.
std::vector<std::string> optionsOf(const std::string& command, const std::vector<std::string>& types) {
    std::vector<std::string> names;
    for (const std::string& line : test::linesOf(cli({command, "--help"}).out)) {
        std::istringstream words(line);
        std::string name, type;
        words >> name >> type;
        type = type.substr(0, type.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ")); // INT:INT in [0 - 4096]=0
        const std::size_t dashes = name.find("--");
        if (dashes != std::string::npos && std::find(types.begin(), types.end(), type) != types.end())
            names.push_back(name.substr(dashes));
    }
    return names;
}

/// The library's own words for it name neither what is wrong nor what would be right.
TEST_F(VainOptions, WhatIsNoNumberOrTooLargeIsRefusedInOneSentenceByEveryOption) {
    int commands = 0, options = 0;
    for (const std::string& line : test::linesOf(cli({"--help"}).out)) {
        if (line.rfind("  ", 0) != 0 || line[2] < 'a' || line[2] > 'z') continue;
        const std::string command = line.substr(2, line.find(' ', 2) - 2);
        if (command == "bench") continue; // hands its options on
        ++commands;
        const auto refused = [&](const std::string& option, const std::string& value, const char* words) {
            EXPECT_THAT(refusal({command, option, value}),
                        AllOf(HasSubstr(option), HasSubstr(value + " is "), ContainsRegex(words)))
                << command;
        };
        for (const std::string& option : optionsOf(command, {"INT", "UINT"})) {
            ++options;
            refused(option, "99999999999999999999", "the largest is [0-9]|not in the range -?[0-9]+ to [0-9]");
            refused(option, "-99999999999999999999",
                    "negative|the smallest is -[0-9]|not in the range -?[0-9]+ to [0-9]");
            for (const char* none : {"ten", "1e3", "0x", "3.0"})
                refused(option, none, "not a whole number|not in the range -?[0-9]+ to [0-9]");
        }
        for (const std::string& option : optionsOf(command, {"FLOAT"})) {
            ++options;
            refused(option, "ten", "not a number");
            refused(option, "1e999", "not a finite number|not in the range");
        }
    }
    EXPECT_GT(commands, 20) << "that --help lists";
    EXPECT_GT(options, 80);
    EXPECT_THAT(refusal({"replay", "a.kvtrace", "--cache-blocks", "99999999999999"}),
                HasSubstr("--cache-blocks: 99999999999999 is too large: the largest is 2147483647"));
    EXPECT_THAT(refusal({"run", "--batch", "300"}), HasSubstr("--batch: 300 is not in the range 1 to 256"));
    EXPECT_THAT(refusal({"run", "--batch", "1.5"}), HasSubstr("--batch: 1.5 is not a whole number from 1 to 256"));
    EXPECT_THAT(refusal({"serve", "--deadline", "0"}), HasSubstr("--deadline: 0 is not in the range 0.001 to 86400"));
}

TEST_F(VainOptions, ANumberThatBeginsWithZerosIsNotOctal) {
    const auto generated = [](const char* tokens) {
        return jsonOf({"run", "--prompt", "one two", "--ignore-eos", "--max-new-tokens", tokens})
            .at("generated_ids")
            .size();
    };
    EXPECT_EQ(generated("010"), 10u);
    EXPECT_EQ(generated("0x0a"), 10u);
    EXPECT_EQ(jsonOf({"run", "--prompt", "one two", "--max-new-tokens", "2", "--batch", "002"}).at("sequences"), 2);
}

TEST_F(VainOptions, WhatIsGivenTwiceIsRefused) {
    EXPECT_THAT(refusal({"serve", "--limit", "head_s=1", "--limit", "head_s=2", "--port", "1"}),
                AnyOf(HasSubstr("--limit gives 'head_s' twice: 1 and 2"), HasSubstr("without Asio")));
    EXPECT_THAT(refusal({"serve", "--alias", "a", "--alias", "b", "--alias", "a", "--port", "1"}),
                AnyOf(HasSubstr("--alias names a twice"), HasSubstr("without Asio")));
    EXPECT_THAT(refusal({"simulate", "--workload", "longmix", "--requests", "3", "--slo", "tbt=5,ttft=9,tbt=6"}),
                HasSubstr("--slo names tbt twice"));
}

TEST_F(VainOptions, WhatHasNoEffectIsNotAskedFor) {
    const Finished learned =
        cli({"calibrate", "--what", "channels", "--texts", "2", "--tokens", "128", "-o", path("out")});
    EXPECT_EQ(learned.status, 0) << "fewer tokens than --queries, which has no effect here: " << learned.err;
}

TEST_F(VainOptions, LogitsThatCannotBeWrittenAreRefusedBeforeTheRun) {
    record(path("a.kvtrace"), {"--prompt", "one", "--max-new-tokens", "2"});
    for (const std::string& file : {path("a.kvtrace"), path("no/such/folder.safetensors"), path("")})
        EXPECT_THAT(refusalOfRun({"--logits", file}), HasSubstr("cannot write '" + file + "'"));
}

TEST_F(VainOptions, AFolderIsNoText) {
    EXPECT_THAT(refusal({"run", "--prompt-file", path("")}), HasSubstr("cannot read the text " + path("")));
    EXPECT_THAT(refusal({"tokenize", "--file", path("")}), HasSubstr("cannot read the text " + path("")));
    EXPECT_THAT(refusal({"eval", "--methods", "full", "--prompts", "0", "--text", path("")}),
                HasSubstr("cannot read the text " + path("")));
    EXPECT_THAT(refusal({"simulate", "--workload", path("")}), HasSubstr("cannot read the workload " + path("")));
    EXPECT_THAT(refusal({"tune", "--prompts", path("")}), HasSubstr("cannot read the prompt set " + path("")));
    EXPECT_THAT(refusal({"serve", "--host", "0.0.0.0", "--api-key-file", path("")}),
                HasSubstr("cannot read the file of keys " + path("")));
    EXPECT_THAT(refusal({"simulate", "--workload", "longmix", "--search", "--rungs", "all", "--resume", path("")}),
                HasSubstr("points cannot be kept in '" + path("") + "'"));
}

TEST_F(VainOptions, ADeviceWithoutAnEndIsNotReadForEver) {
    EXPECT_THAT(refusal({"simulate", "--print-costs", "--costs", "/dev/zero"}),
                HasSubstr("the table of costs /dev/zero is longer than 16 MiB"));
    EXPECT_THAT(refusal({"roofline", "--list-gpus", "--gpus", "/dev/zero"}),
                HasSubstr("the GPU table /dev/zero is longer than 16 MiB"));
    EXPECT_THAT(refusal({"serve", "--host", "0.0.0.0", "--api-key-file", "/dev/zero"}),
                HasSubstr("the file of keys /dev/zero is longer than 16 MiB"));
}

TEST_F(VainOptions, APipeIsReadToItsEndAndNotWaitedForWhereNobodyWrites) {
    const std::string pipe = path("pipe"), tokens = cli({"tokenize", "--text", "one two"}).out;
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    const auto shell = [&](const std::string& before, const std::string& file) {
        return test::runProcess({"/bin/sh", "-c", before + test::kCommandLine + " tokenize --file " + file});
    };
    for (const auto& [before, file] : std::vector<std::pair<std::string, std::string>>{
             {"printf 'one two' | ", "/dev/stdin"},
             {"printf 'one two' | ", "/dev/fd/0"},
             {"(printf one; sleep 0.3; printf ' two') | ", "/dev/fd/0"},
             {"printf 'one two' > " + pipe + " & ", pipe},
             {"(exec 3> " + pipe + "; sleep 3.5; printf 'one two' >&3) & ", pipe}}) {
        const Finished read = shell(before, file);
        EXPECT_EQ(read.status, 0) << before << read.err;
        EXPECT_EQ(read.out, tokens) << before;
    }
    EXPECT_THAT(refusal({"run", "--prompt-file", pipe}),
                HasSubstr("the text " + pipe + " is a pipe into which no program writes"));
    std::filesystem::create_directory(path("model"));
    ASSERT_EQ(mkfifo(path("model/config.json").c_str(), 0600), 0);
    EXPECT_THAT(refusal({"info", path("model")}),
                HasSubstr("cannot read " + path("model/config.json") + ": it is a pipe or a device, not a file"));
}

/// A writer that says nothing keeps its pipe open; eval, quality and tune read while they handle the signal themselves.
TEST_F(VainOptions, OneInterruptEndsTheWaitForASilentPipe) {
    const std::string pipe = path("pipe");
    ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
    for (const auto& words : std::vector<std::vector<std::string>>{{"eval", "--text", pipe},
                                                                   {"quality", "--text", pipe},
                                                                   {"tune", "--prompts", pipe},
                                                                   {"simulate", "--workload", pipe}}) {
        // A command that waits for ever must not make the test wait: `timeout` kills it. With --foreground `timeout`
        // passes the signal on once.
        std::vector<std::string> line{"/usr/bin/timeout", "--foreground", "-s", "KILL", "60", test::kCommandLine};
        line.insert(line.end(), words.begin(), words.end());
        test::Process command(line);
        // The test opens the pipe's writing end when the command has opened the reading end, and writes nothing. An
        // open() that waits would wait for ever if the command ended without reading.
        int end = -1;
        for (int look = 0; end < 0 && look < 7'000; ++look) {
            end = open(pipe.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
            if (end < 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        ASSERT_GE(end, 0) << words[0] << command.wait().err;
        command.signal(SIGINT);
        const Finished ended = command.wait();
        EXPECT_EQ(ended.status, 128 + SIGINT) << words[0] << ended.err;
        close(end);
    }
}

TEST_F(VainOptions, AWorkloadFromAPipeServesEverySeed) {
    const std::string file = path("w.jsonl");
    const Finished written = cli({"simulate", "--workload", "longmix", "--requests", "60", "--write", file});
    ASSERT_EQ(written.status, 0) << written.err;
    const std::string rest = " --counted 40 --warm-up 10 --rate 0.1 --seeds 2 --arrivals poisson --json";
    const auto simulated = [&](const std::string& before, const std::string& workload) {
        const Finished result = test::runProcess(
            {"/bin/sh", "-c", before + test::kCommandLine + " simulate --workload " + workload + rest});
        EXPECT_EQ(result.status, 0) << result.err;
        return nlohmann::json::parse(result.out, nullptr, false).value("seeds", nlohmann::json());
    };
    const nlohmann::json seeds = simulated("", file);
    ASSERT_EQ(seeds.size(), 2U);
    EXPECT_NE(seeds[0], seeds[1]);
    EXPECT_EQ(simulated("cat " + file + " | ", "/dev/stdin"), seeds);
    // With the arrivals of the file, equal results of all seeds looked like an interval without width.
    for (const char* arrivals : {"recorded", "constant"})
        EXPECT_THAT(refusal({"simulate", "--workload", file, "--rate", "0.1", "--seeds", "3", "--arrivals", arrivals}),
                    HasSubstr("are the same with every seed"));
}

/// What a shell makes of an unset variable, and a number that every range would let pass.
TEST_F(VainOptions, EmptyValuesAndNumbersThatAreNoneAreRefused) {
    EXPECT_THAT(refusal({"run", "--prompt", "a", "--trace", ""}), HasSubstr("--trace: the value is empty"));
    EXPECT_THAT(refusal({"export", "a.kvtrace", "--what", "steps", "-o", ""}), HasSubstr("the value is empty"));
    EXPECT_THAT(refusal({"roofline", "--shape", ""}), HasSubstr("--shape: the value is empty"));
    EXPECT_THAT(refusal({"tokenize", "--text", "a", "--file", ""}), HasSubstr("--file: the value is empty"));
    EXPECT_THAT(refusal({"info", ""}), HasSubstr("the value is empty"));
    EXPECT_EQ(cli({"tokenize", "--text", ""}).status, 0);
    for (const char* number : {"nan", "-nan", "inf", "1e999"}) {
        EXPECT_THAT(refusal({"roofline", "--latency", number}), HasSubstr("is not a finite number"));
        EXPECT_THAT(refusal({"serve", "--deadline", number}), HasSubstr("is not a finite number"));
        EXPECT_THAT(refusal({"run", "--prompt", "a", "--temperature", number}), HasSubstr("is not a finite number"));
        EXPECT_THAT(refusal({"eval", "--depths", std::string("0.5,") + number}), HasSubstr("is not a finite number"));
    }
}

TEST_F(VainOptions, OptionsThatNoCommandHasAreNamed) {
    EXPECT_EQ(refusal({"check", "a.kvtrace", "--run", "9"}),
              "kvscope-cli: there is no option --run; see kvscope-cli check --help\n");
    EXPECT_EQ(refusal({"check", "a.kvtrace", "--run=9"}),
              "kvscope-cli: there is no option --run; see kvscope-cli check --help\n");
    EXPECT_EQ(refusal({"check", "a.kvtrace", "b.kvtrace"}),
              "kvscope-cli: there is no place for the argument 'b.kvtrace'; see kvscope-cli check --help\n");
    EXPECT_EQ(refusal({"chekc"}),
              "kvscope-cli: there is no command chekc (did you mean check?); see kvscope-cli --help\n");
    EXPECT_EQ(refusal({"paint"}), "kvscope-cli: there is no command paint; see kvscope-cli --help\n");
    EXPECT_EQ(refusal({"check", "a.kvtrace", "--limit", "1", "--limit", "1"}),
              "kvscope-cli: --limit is given more than once; see kvscope-cli check --help\n");
}

TEST_F(VainOptions, TheOptionThatIsWrittenMostAlikeIsNamed) {
    for (const auto& [wrong, meant] :
         std::vector<std::pair<const char*, const char*>>{{"--modle", "--model"},      // two letters exchanged
                                                          {"--promt", "--prompt"},     // one left out
                                                          {"--bbackend", "--backend"}, // one too many
                                                          {"--max-new-tokans", "--max-new-tokens"}, // another one
                                                          {"-backend", "--backend"},                // a dash left out
                                                          {"--cache_policy", "--cache-policy"}})
        EXPECT_EQ(refusal({"run", "--prompt", "a", wrong, "7"}),
                  fmt::format("kvscope-cli: there is no option {} (did you mean {}?); see kvscope-cli run --help\n",
                              wrong, meant));
    EXPECT_THAT(refusal({"run", "--prompt", "a", "--modle=x"}),
                HasSubstr("no option --modle (did you mean --model?);"));
    EXPECT_EQ(refusal({"run", "--prompt", "a", "--colour", "red"}),
              "kvscope-cli: there is no option --colour; see kvscope-cli run --help\n");
}

TEST_F(VainOptions, MethodsSettingsAndModelsThatAreWrittenMostAlikeAreNamed) {
    EXPECT_THAT(refusal({"methods", "qeust"}), HasSubstr("unknown method 'qeust' (did you mean quest?); known"));
    EXPECT_THAT(refusalOfRun({"--method", "double_sparsity"}), HasSubstr("(did you mean double-sparsity?)"));
    EXPECT_THAT(refusalOfRun({"--set", "windw_blocks=3"}), HasSubstr("'windw_blocks' (did you mean window_blocks?);"));
    EXPECT_THAT(refusal({"info", "nosa-tinny"}),
                HasSubstr("there is no model 'nosa-tinny' (did you mean nosa-tiny?);"));
    EXPECT_THAT(refusal({"info", "/etc/no/folder"}), Not(HasSubstr("did you mean")));
    EXPECT_THAT(refusalOfRun({"--method", std::string(5'000, 'q')}), Not(HasSubstr("did you mean")));
}

/// 2 is for a command line that cannot be read.
TEST_F(VainOptions, HaveOneExitStatusWhereverTheyAreNoticed) {
    for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
             {"run", "--prompt", "a", "--top-k", "3"},                                    // by the run
             {"run", "--prompt", "a", "--needles", "3"},                                  // without what it needs
             {"simulate", "--workload", "longmix", "--write", path("w"), "--rate", "1"}}) // beside what excludes it
        EXPECT_EQ(cli(words).status, 1) << words.back();
    for (const std::vector<std::string>& words :
         std::vector<std::vector<std::string>>{{"run", "--colour"}, {"run", "--batch", "0"}, {"paint"}})
        EXPECT_EQ(cli(words).status, 2) << words.back();
}

TEST_F(VainOptions, AnEmptyValueInAListIsRefused) {
    const auto refused = [](const std::string& option, const std::string& list) {
        return option + " has an empty value in the list '" + list + "'";
    };
    for (const char* list : {"16,,24", ",16", "16,", ","}) {
        EXPECT_EQ(refusal({"replay", "a.kvtrace", "--cache-blocks", list}),
                  "kvscope-cli: " + refused("--cache-blocks", list) +
                      "; leave out the comma that has no value beside it\n");
        EXPECT_THAT(refusal({"replay", "a.kvtrace", std::string("--cache-blocks=") + list}),
                    HasSubstr(refused("--cache-blocks", list)));
        EXPECT_THAT(refusal({"replay", "--cache-blocks", "8", list, "--json"}),
                    HasSubstr(refused("--cache-blocks", list)));
    }
    // CLI11 splits the lists of most options; the commands split these lists themselves.
    for (const auto& [command, option] : std::vector<std::pair<const char*, const char*>>{{"roofline", "--context"},
                                                                                          {"eval", "--contexts"},
                                                                                          {"tune", "--budgets"},
                                                                                          {"quality", "--tasks"},
                                                                                          {"simulate", "--rate"},
                                                                                          {"compare", "--run-a"}})
        EXPECT_THAT(refusal({command, option, "1,,2"}), HasSubstr(refused(option, "1,,2"))) << command;
    EXPECT_THAT(refusal({"sweep", "--prompt", "a", "--trace", path("a.kvtrace"), "--sweep", "k_q=1,,3"}),
                HasSubstr(refused("--sweep", "1,,3")));
    EXPECT_THAT(refusal({"eval", "--sweep", "k_q=1,"}), HasSubstr(refused("--sweep", "1,")));
    EXPECT_THAT(refusal({"simulate", "--workload", "longmix", "--slo", "ttft=1000,"}),
                HasSubstr(refused("--slo", "ttft=1000,")));
    EXPECT_THAT(refusal({"simulate", "--workload", "longmix", "--search", "--rungs", "full,"}),
                HasSubstr(refused("--rungs", "full,")));
    EXPECT_EQ(cli({"tokenize", "--text", "a,,b"}).status, 0); // a text, not a list
}

TEST_F(VainOptions, ARunIsNoRepeatOfItself) {
    record(path("a.kvtrace"), {"--prompt", "one two", "--max-new-tokens", "3"});
    record(path("a.kvtrace"), {"--prompt", "one two", "--max-new-tokens", "3"});
    std::filesystem::create_symlink(path("a.kvtrace"), path("b.kvtrace"));
    const std::string a = path("a.kvtrace");
    EXPECT_THAT(refusal({"compare", a, a, "--run-a", "1,1"}), HasSubstr("run 1 of " + a + " is given twice"));
    EXPECT_THAT(refusal({"compare", a, a, "--run-a", "1", "--also-b", a}), HasSubstr("is given twice"));
    EXPECT_THAT(refusal({"compare", a, a, "--run-a", "1", "--also-b", path("b.kvtrace")}), HasSubstr("given twice"));
}

TEST_F(VainOptions, ASettingGivenTwiceIsRefused) {
    EXPECT_THAT(refusalOfRun({"--set", "total_blocks=8", "--set", "total_blocks=9"}),
                HasSubstr("--set gives 'total_blocks' twice: 8 and 9"));
    EXPECT_THAT(refusal({"roofline", "--set", "total_blocks=8", "--set", "total_blocks=8"}), HasSubstr("twice"));
    EXPECT_THAT(refusal({"eval", "--set", "total_blocks=8", "--set", "k=9"}), HasSubstr("'total_blocks' twice"));
    EXPECT_THAT(refusal({"eval", "--set", "total_blocks=8", "--sweep", "k=9,10"}), HasSubstr("'total_blocks'"));
    EXPECT_THAT(refusal({"simulate", "--workload", "longmix", "--set", "rows=8", "--set", "rows=9"}),
                HasSubstr("--set gives 'rows' twice"));
    EXPECT_THAT(refusal({"load", "--workload", "longmix", "--knob", "rows=8", "--knob", "rows=9"}),
                HasSubstr("--knob gives 'rows' twice"));
    EXPECT_THAT(refusal({"load", "--workload", "longmix", "--set", "total_blocks=8", "--set", "total_blocks=9"}),
                HasSubstr("--set gives 'total_blocks' twice"));
}

TEST_F(VainOptions, AValueThatAListNamesTwiceIsRefused) {
    for (const auto& [option, list, value] :
         std::vector<std::array<const char*, 3>>{{"--cache-blocks", "16,18,16", "16"},
                                                 {"--policy", "lru,lru", "lru"},
                                                 {"--block-size", "64,64", "64"},
                                                 {"--link", "12,pcie4,12", "12"}})
        EXPECT_THAT(refusal({"replay", "a.kvtrace", option, list}),
                    HasSubstr(fmt::format("{} names {} twice", option, value)));
    for (const auto& [option, list, value] :
         std::vector<std::array<const char*, 3>>{{"--methods", "nosa,full,nosa", "nosa"},
                                                 {"--budgets", "512,512", "512"},
                                                 {"--block-sizes", "32,64,32", "32"}})
        EXPECT_THAT(refusal({"tune", option, list}), HasSubstr(fmt::format("{} names {} twice", option, value)));
    EXPECT_THAT(refusal({"tune", "--from", "a.kvtrace", "--from", "a.kvtrace"}),
                HasSubstr("--from names a.kvtrace twice"));
    for (const auto& [option, list, value] : std::vector<std::array<const char*, 3>>{
             {"--context", "4096,4096", "4096"}, {"--batch", "1,4,1", "1"}, {"--hit-rate", "bound,0.5,bound", "bound"}})
        EXPECT_THAT(refusal({"roofline", option, list}), HasSubstr(fmt::format("{} names {} twice", option, value)));
    for (const char* command : {"load", "simulate"}) {
        EXPECT_THAT(refusal({command, "--workload", "longmix", "--rate", "0.5,2,0.5"}),
                    HasSubstr("--rate names 0.5 twice"));
        EXPECT_THAT(refusal({command, "--workload", "longmix", "--search", "--rungs", "full,+sparse,full"}),
                    HasSubstr("--rungs names full twice"));
    }
    for (const auto& [axis, value] :
         std::vector<std::array<const char*, 2>>{{"method=nosa,full,nosa", "method names nosa"},
                                                 {"seed=3,4,3", "seed names 3"},
                                                 {"k_q=1,2,1", "select_blocks names 1"}})
        EXPECT_THAT(
            refusal({"sweep", "--prompt", "x", "--temperature", "1", "--trace", path("none.kvtrace"), "--sweep", axis}),
            HasSubstr(fmt::format("--sweep {} twice", value)));
    EXPECT_THAT(refusal({"eval", "--methods", "nosa", "--sweep", "k_q=1,2,1"}),
                HasSubstr("--sweep select_blocks names 1 twice"));
    record(path("a.kvtrace"), {"--prompt", "one two", "--max-new-tokens", "2"});
    for (const char* option : {"--tag", "--untag"})
        EXPECT_THAT(refusal({"label", path("a.kvtrace"), option, "slow", option, "slow"}),
                    HasSubstr(fmt::format("{} names slow twice", option)));
}

TEST_F(VainOptions, OneValueInTwoSpellingsIsRefused) {
    EXPECT_THAT(refusal({"replay", "a.kvtrace", "--link", "12,pcie4,12.0"}),
                HasSubstr("--link names one value twice: 12 and 12.0"));
    EXPECT_THAT(refusal({"replay", "a.kvtrace", "--link", "pcie5,55.5"}),
                HasSubstr("--link names one value twice: pcie5 and 55.5"));
    EXPECT_THAT(refusal({"roofline", "--hit-rate", "0.9,bound,0.90"}),
                HasSubstr("--hit-rate names one value twice: 0.9 and 0.90"));
    record(path("a.kvtrace"), {"--prompt", "one two", "--max-new-tokens", "2"});
    EXPECT_THAT(refusal({"tune", "--from", path("a.kvtrace"), "--from", path("./a.kvtrace")}),
                HasSubstr("--from names one value twice"));
    for (const auto& [key, list, same] :
         std::vector<std::array<const char*, 3>>{{"temperature", "0.5,1,5e-1", "0.5 and 5e-1"},
                                                 {"device-kv", "96,0.25GiB,256MiB", "0.25GiB and 256MiB"},
                                                 {"link", "26,pcie4", "26 and pcie4"},
                                                 {"select_blocks", "2,02", "2 and 02"}})
        EXPECT_THAT(refusal({"sweep", "--prompt", "x", "--trace", path("none.kvtrace"), "--sweep",
                             fmt::format("{}={}", key, list)}),
                    HasSubstr(fmt::format("--sweep {} names one value twice: {}", key, same)));
    // Neighbours that a double does not tell apart are two seeds.
    const json out = jsonOf({"sweep", "--prompt", "x", "--max-new-tokens", "2", "--temperature", "1", "--trace",
                             path("b.kvtrace"), "--sweep", "seed=9007199254740992,9007199254740993"});
    EXPECT_EQ(out.at("runs").size(), 2u);
}

TEST_F(VainOptions, OfModelsAndTracesAreRefusedForTheOther) {
    record(path("a.kvtrace"), {"--prompt", "one two", "--max-new-tokens", "2"});
    EXPECT_THAT(refusal({"info", path("a.kvtrace"), "--context", "4096"}),
                HasSubstr("--context has no effect on a trace"));
    EXPECT_THAT(refusal({"info", path("a.kvtrace"), "--batch", "2"}), HasSubstr("--batch has no effect on a trace"));
    EXPECT_THAT(refusal({"info", "nosa-tiny", "--count-cold"}), HasSubstr("--count-cold has no effect on a model"));
    EXPECT_THAT(refusal({"roofline", "--count-cold"}), HasSubstr("--count-cold requires --trace"));
    for (const char* option : {"--shape", "--trace", "--gpu", "--context", "--set"})
        for (const char* action : {"--list-gpus", "--measure=cpu"})
            EXPECT_THAT(refusal({"roofline", action, option, "1"}), HasSubstr("excludes")) << action << " " << option;
    EXPECT_EQ(cli({"info", path("a.kvtrace"), "--count-cold"}).status, 0);
}

/// The method's declaration (MethodEntry::blocksTravel) is what a run shows, and the command that repeats the run is
/// taken and shows the same.
TEST_F(VainOptions, EveryMethodsCommandRepeatsItsRun) {
    const bool denoises = std::filesystem::exists(test::source("resources/models/losa-tiny/model.safetensors"));
    for (const MethodEntry& method : methods())
        for (const bool offload : {true, false}) {
            if (!method.decodesTokens && !denoises) continue; // this checkout leaves the model out
            SCOPED_TRACE(method.name + (offload ? "" : " without offloading"));
            const std::string model = method.decodesTokens ? "nosa-tiny" : "losa-tiny";
            const std::string trace = path(method.name + (offload ? ".kvtrace" : "-resident.kvtrace"));
            std::vector<std::string> arguments{"--model",           model, "--method",         method.name,
                                               "--prompt-document", "900", "--max-new-tokens", "6"};
            if (!offload) arguments.emplace_back("--no-offload");
            if (!hasWeightsFor(method, *Model::load(model))) continue;
            const json first = record(trace, arguments);
            ASSERT_TRUE(first.is_object());
            const auto moved = first.at("h2d_bytes").get<std::int64_t>() + first.at("d2h_bytes").get<std::int64_t>();
            EXPECT_EQ(moved > 0, offload && method.blocksTravel);

            reports::Reproduction again = reports::reproduce(reports::readRuns({trace}).front());
            ASSERT_FALSE(again.arguments.empty());
            for (std::string& argument : again.arguments) { // names without the way to them
                if (argument.starts_with(method.name) && argument.find(".kvtrace:") != std::string::npos)
                    argument = path(argument);
                if (argument == "again.kvtrace") argument = path(argument);
            }
            again.arguments.insert(again.arguments.end(), {"--overwrite", "--json"});
            const Finished repeated = cli(again.arguments);
            ASSERT_EQ(repeated.status, 0) << again.command() << "\n" << repeated.err;
            const json second = json::parse(repeated.out);
            for (const char* key : {"generated_ids", "parameters", "hits", "misses", "h2d_bytes", "d2h_bytes"})
                EXPECT_EQ(first.at(key), second.at(key)) << key << "\n" << again.command();
            const bool links =
                std::find(again.arguments.begin(), again.arguments.end(), "--link") != again.arguments.end();
            EXPECT_EQ(links, method.blocksTravel && offload) << again.command();
        }
}

/// A parameter that is declared to act where blocks leave the device changes nothing where none does.
TEST_F(VainOptions, ParametersOfOffloadingChangeNothingWithoutIt) {
    int found = 0;
    const auto model = Model::load("nosa-tiny");
    for (const MethodEntry& method : methods())
        for (const Parameter& parameter : method.parameters) {
            if (parameter.scope == ParameterScope::EveryRun || !method.decodesTokens || method.hasIndexer != nullptr)
                continue;
            ++found;
            EXPECT_THAT(refusalOfRun({"--method", method.name, "--no-offload", "--set",
                                      parameter.key + "=" + parameter.defaultValue}),
                        HasSubstr(parameter.key));
            ParameterValues values = resolveDefaults(method, model->config());
            const SelectionSpec before = method.make(values, model->config());
            const bool chooses = parameter.type == ParameterType::Choice; // how blocks travel, and not which
            values.set(method.parameters, parameter.key,
                       chooses                                    ? parameter.choices.back()
                       : parameter.type == ParameterType::Boolean ? "false"
                                                                  : "77");
            const SelectionSpec after = method.make(values, model->config());
            EXPECT_EQ(before.budgetBlocks(), after.budgetBlocks()) << parameter.key;
            EXPECT_EQ(before.neededSlots(), after.neededSlots()) << parameter.key;
            EXPECT_EQ(chooses, before.deviceSlots == after.deviceSlots && before.keepsLayer0 == after.keepsLayer0)
                << parameter.key;
        }
    EXPECT_GE(found, 2);
}

/// A folder that holds nothing learned, or something damaged, is refused before the model is looked for.
TEST_F(VainOptions, AWrongCalibrationIsRefusedBeforeTheModelIsLoaded) {
    const auto refusalWith = [&](const std::string& calibration) {
        const std::vector<std::string> learned{"--model", path("no-model"), "--calibration", calibration};
        std::vector<std::string> load{"load", "--workload", "longmix"}, run{"run", "--prompt", "a"};
        load.insert(load.end(), learned.begin(), learned.end());
        run.insert(run.end(), learned.begin(), learned.end());
        EXPECT_EQ(refusal(load), refusal(run));
        std::vector<std::string> serve{"serve", "--port", "0"};
        serve.insert(serve.end(), learned.begin(), learned.end());
        EXPECT_EQ(refusal(serve), refusal(run)) << "before it listens";
        return refusal(load);
    };
    std::ofstream(path("a-file")) << "text";
    EXPECT_THAT(refusalWith(path("a-file")), HasSubstr("a-file is not a folder"));
    EXPECT_THAT(refusalWith(path("absent")), HasSubstr("absent is not a folder"));
    std::filesystem::create_directory(path("learned"));
    EXPECT_THAT(refusalWith(path("learned")), HasSubstr("holds nothing that kvscope-cli calibrate writes"));
    std::ofstream(path("learned/locret.safetensors")) << "damaged";
    EXPECT_THAT(refusalWith(path("learned")), HasSubstr("locret.safetensors"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
