#include "bench/headline/headline_parts.h"

#include "base/error.h"
#include "bench/child_program.h"
#include "bench/desktop_program.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fmt/format.h>
#include <sstream>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;

/// Runs a benchmark of the registry. @throws Error(Unsupported) where this build has none of the name
Json benchmark(std::string_view name, const Settings& settings, const Log& log) {
    for (const BenchEntry& bench : benchmarks()) {
        if (bench.name != name) continue;
        if (bench.inDesktop) return runInDesktop(name, settings);
        return bench.runOnGpu != nullptr ? bench.runOnGpu(settings, log) : bench.runWith(settings, log);
    }
    throw Error(ErrorKind::Unsupported, fmt::format("this build has no benchmark {}", name),
                "build with CUDA: docs/building.md");
}

std::string settingOf(const HeadlineRun& run, const char* key, const std::string& fallback) {
    const auto found = run.settings.find(key);
    return found == run.settings.end() ? fallback : found->second;
}

/// A file of bench/peer, looked for below this folder and in those above the program; empty where there is none.
std::string peerScript(const HeadlineRun& run, const std::string& name) {
    std::vector<std::filesystem::path> places{settingOf(run, "peers", "bench/peer")};
    for (std::filesystem::path at = programBeside(""); at.has_relative_path(); at = at.parent_path())
        places.push_back(at / "bench" / "peer");
    for (const auto& place : places)
        if (std::error_code none; std::filesystem::is_regular_file(place / name, none)) return (place / name).string();
    return {};
}

/// The lines of JSON that a peer prints; none where it cannot run, and then the run says why.
PeerLines peerLines(HeadlineRun& run, const std::string& name, const std::vector<std::string>& arguments) {
    if (run.peerFailed) return {};
    const std::string script = peerScript(run, name);
    PeerLines lines;
    int status = -1;
    if (script.empty()) {
        run.peer = fmt::format("bench/peer/{} is not here; name its folder with peers=", name);
    } else {
        std::vector<std::string> command{"/usr/bin/env", settingOf(run, "python", "python3"), script};
        command.insert(command.end(), arguments.begin(), arguments.end());
        run.log(fmt::format("peer: {}", name));
        ChildProgram peer(command);
        status = peer.wait();
        std::istringstream text(peer.output());
        for (std::string line; std::getline(text, line);)
            if (Json value = Json::parse(line, nullptr, false); value.is_object()) lines.push_back(std::move(value));
        run.peer = name;
        if (status != 0 || lines.empty())
            run.peer += fmt::format(" ended with status {}; its own message is above", status);
        else if (lines.front().contains("torch"))
            run.peer += fmt::format(", torch {}", lines.front()["torch"].get<std::string>());
    }
    run.peerFailed = status != 0 || lines.empty();
    if (run.peerFailed) {
        run.log(fmt::format("no peer: {}; rows that need it are left out", run.peer));
        return {};
    }
    return lines;
}

/// Ours and the peer's, one after the other; who begins changes from run to run.
template <class Ours>
std::pair<Json, PeerLines> inTurns(HeadlineRun& run, const Ours& ours, const std::string& script,
                                   const std::vector<std::string>& arguments) {
    PeerLines peer;
    if (run.peerFirst) peer = peerLines(run, script, arguments);
    Json measured = ours();
    if (!run.peerFirst) peer = peerLines(run, script, arguments);
    return {std::move(measured), std::move(peer)};
}

Json promptAttention(HeadlineRun& run) {
    const auto [kernels, peer] = inTurns(run,
                                         [&] {
                                             return benchmark("gpu-kernels", {{"only", "prefill"}}, run.log);
                                         },
                                         "attention_torch.py", {});
    return promptAttentionRows(kernels, peer);
}

Json wholePrompts(HeadlineRun& run) {
    const auto [prompts, peer] =
        inTurns(run, [&] { return benchmark("prefill", {}, run.log); }, "prefill_torch.py", {"--rounds", "3"});
    return wholePromptRows(prompts, peer);
}

/// Measures in programs of their own, because this program has read its first prompt long ago.
Json firstPrompt(HeadlineRun& run) {
    Settings settings{{"rounds", "2"}};
    if (const std::string folder = settingOf(run, "checkpoint", ""); !folder.empty()) settings["folder"] = folder;
    return firstPromptRows(benchmark("first-prompt", settings, run.log));
}

Json kernelsAlone(HeadlineRun& run) {
    const Settings linear{{"only", "linear"},
                          {"peer", peerScript(run, "linear_torch.py")},
                          {"python", settingOf(run, "python", "python3")}};
    Json rows = projectionRows(benchmark("gpu-kernels", linear, run.log));
    rows.update(selectionRows(benchmark("gpu-kernels", {{"only", "select"}}, run.log)));
    rows.update(sparseAttentionRows(benchmark("gpu-kernels", {{"only", "attention"}}, run.log)));
    return rows;
}

Json batchOne(HeadlineRun& run) {
    Json rows = batchOneRows(benchmark("decode", {{"grid", "one"}, {"rounds", "2"}}, run.log));
    rows.update(residentRows(benchmark("decode", {{"grid", "contexts"}, {"rounds", "2"}}, run.log)));
    return rows;
}

template <int kContext> Json batchCurve(HeadlineRun& run) {
    return batchCurveRows(
        benchmark("decode", {{"grid", "batches"}, {"context", fmt::format("{}", kContext)}, {"rounds", "2"}}, run.log));
}

Json offloaded(HeadlineRun& run) {
    return offloadedRows(benchmark("decode", {{"grid", "offloaded"}, {"rounds", "2"}}, run.log));
}

Json offloadedAhead(HeadlineRun& run) {
    return aheadRows(benchmark("decode", {{"grid", "ahead"}, {"rounds", "2"}}, run.log));
}

Json halvesOfBatches(HeadlineRun& run) {
    return halvesRows(benchmark("decode", {{"grid", "halves"}, {"rounds", "2"}}, run.log));
}

Json sameMemory(HeadlineRun& run) {
    return sameMemoryRows(benchmark("decode", {{"grid", "same-memory"}, {"rounds", "2"}}, run.log));
}

Json longAnswer(HeadlineRun& run) {
    return longAnswerRows(benchmark("decode", {{"grid", "long"}, {"rounds", "2"}}, run.log));
}

Json exposedTransfers(HeadlineRun& run) { return exposureRows(benchmark("decode", {{"grid", "exposure"}}, run.log)); }

Json hiddenTransfers(HeadlineRun& run) {
    return hiddenTransferRows(benchmark("decode", {{"grid", "hidden-transfers"}, {"rounds", "2"}}, run.log));
}

Json operators(HeadlineRun& run) {
    return operatorRows(benchmark("decode", {{"grid", "operators"}, {"rounds", "2"}}, run.log));
}

Json quantisedBlocks(HeadlineRun& run) {
    return quantisedBlockRows(benchmark("decode", {{"grid", "kv-types"}, {"rounds", "2"}}, run.log));
}

Json recordedSteps(HeadlineRun& run) { return recordingRows(benchmark("decode", {{"grid", "recorded"}}, run.log)); }

Json movedBlocks(HeadlineRun& run) { return gatherRows(benchmark("transfers", {}, run.log)); }

Json blockDiffusion(HeadlineRun& run) {
    return blockDiffusionRows(benchmark("losa-attention", {{"block", "16"}, {"prefix", "65536"}}, run.log));
}

Json fullServers(HeadlineRun& run) { return planRows(benchmark("serving", {{"only", "plans"}}, run.log)); }

Json shownViews(HeadlineRun& run) {
    return viewRows(benchmark("ui-timeline", {}, run.log), benchmark("ui-heatmap", {}, run.log),
                    benchmark("ui-live", {}, run.log));
}

Json besideLlama(HeadlineRun& run) {
    const std::string model = settingOf(run, "llama-model", "");
    if (model.empty())
        throw Error(ErrorKind::BadInput, "part llama has no model", "name a GGUF file with --set llama-model=FILE");
    const PeerLines lines =
        peerLines(run, "beside_llama_cpp.py", {programBeside("kvscope-cli"), model, "--speed-only", "--json"});
    return lines.empty() ? Json::object() : llamaRows(lines.back());
}

constexpr HeadlineMachine kGpu = HeadlineMachine::Gpu, kHost = HeadlineMachine::Host,
                          kDesktop = HeadlineMachine::Desktop;

} // namespace

std::span<const HeadlinePart> headlineParts() {
    static constexpr std::array table{
        HeadlinePart{"first", kGpu, 1.5,
                     "the first prompt of a process: a checkpoint of 6.4 GB in the temporary folder", "first-prompt",
                     firstPrompt, true},
        HeadlinePart{"attention", kGpu, 1, "attention of prompts, beside cuDNN's",
                     "prefill-attention-rate,prefill-attention", promptAttention},
        HeadlinePart{"prompts", kGpu, 2.5, "whole prompts of the 3B Llama shape, beside transformers'",
                     "whole-prompts-time,whole-prompts", wholePrompts},
        HeadlinePart{"kernels", kGpu, 0.7, "projections, selection and sparse attention, each alone",
                     "projections,projections-1b,selection,sparse-attention", kernelsAlone},
        HeadlinePart{"steps", kGpu, 0.7, "steps of batch 1 of three shapes; 16K beside 96K",
                     "batch-1,batch-1-layer,resident-nosa", batchOne, true},
        HeadlinePart{"curve-4k", kGpu, 0.7, "resident nosa at 4K, batch 1 to 256",
                     "batch-curve-4k,batch-curve-4k-layer", batchCurve<4096>, true},
        HeadlinePart{"curve-16k", kGpu, 1, "resident nosa at 16K, batch 1 to 256",
                     "batch-curve-16k,batch-curve-16k-layer", batchCurve<16384>, true},
        HeadlinePart{"curve-96k", kGpu, 1, "resident nosa at 96K, batch 1 to 32",
                     "batch-curve-96k,batch-curve-96k-layer", batchCurve<98304>, true},
        HeadlinePart{"offloaded", kGpu, 2.5, "offloaded nosa at 16K, EB 16, 64 and 128: 65 GiB of pinned memory",
                     "offloaded-step,paper-16k", offloaded, true},
        HeadlinePart{"ahead", kGpu, 0.7, "offloaded nosa at 16K whose blocks the layer before chooses",
                     "paper-16k-ahead,ahead-step", offloadedAhead, true},
        HeadlinePart{"halves", kGpu, 0.8, "offloaded nosa at 16K in two halves beside on demand", "halves,halves-step",
                     halvesOfBatches, true},
        HeadlinePart{"same-memory", kGpu, 1.5, "offloaded pools beside full attention in the same GPU memory, 96K",
                     "full-at-same-memory,same-memory-rate,over-infllmv2", sameMemory, true},
        HeadlinePart{"long", kGpu, 0.5, "an answer of 1,200 tokens", "long-answer", longAnswer, true},
        HeadlinePart{"exposure", kGpu, 1.5, "exposed transfers, reported and by ablation, in three rounds",
                     "exposed-ablation", exposedTransfers, true},
        HeadlinePart{"hidden-transfers", kGpu, 2, "a layer ahead beside waiting at 128K: 69 GB of pinned memory",
                     "ahead", hiddenTransfers, true},
        HeadlinePart{"operators", kGpu, 1, "AsyncTLS's attention beside full attention and Double Sparsity", "asynctls",
                     operators, true},
        HeadlinePart{"kv-types", kGpu, 0.5, "offloaded nosa with blocks of 8 and 4 bits", "quantised-blocks",
                     quantisedBlocks, true},
        HeadlinePart{"recording", kGpu, 1, "steps with and without recording", "recording,cupti", recordedSteps, true},
        HeadlinePart{"gather", kGpu, 1.5, "blocks out of 32 GiB of pinned memory", "gather,gather-over-calls",
                     movedBlocks},
        HeadlinePart{"diffusion", kGpu, 0.5, "a layer of block diffusion at 64K", "block-diffusion", blockDiffusion},
        HeadlinePart{"plans", kHost, 0.5, "plans of full servers", "plans", fullServers},
        HeadlinePart{"views", kDesktop, 15, "frames of timeline and heatmap, and a run that is watched",
                     "views,live-views", shownViews},
        HeadlinePart{"llama", kHost, 8, "prompts and decoding of a GGUF file, beside llama.cpp", "llama-cpp",
                     besideLlama},
    };
    return table;
}

} // namespace kvscope::bench
