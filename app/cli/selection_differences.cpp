#include "app/cli/selection_differences.h"

#include "base/error.h"
#include "profiler/export/line_writer.h"
#include "profiler/export/output_file.h"

#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <string_view>

namespace kvscope::cli {
namespace {

constexpr std::size_t kPairsAtOnce = 64;

/// A number, or what the format has for none.
std::string number(float value, bool jsonl) {
    return std::isfinite(value) ? fmt::format("{:.9g}", value) : jsonl ? "null" : "";
}

void add(LineWriter& writer, const HeadDifference& head, bool jsonl) {
    for (const DifferingBlock& block : head.blocks) {
        const std::string score = number(block.score, jsonl), gap = number(block.gap, jsonl),
                          share = number(block.gapOfRange, jsonl);
        const char* run = block.onlyA ? "a" : "b";
        if (jsonl)
            writer.add("{{\"step_a\":{},\"step_b\":{},\"layer\":{},\"seq\":{},\"kv_head\":{},\"block\":{},\"only\":"
                       "\"{}\",\"origin\":\"{}\",\"score\":{},\"gap\":{},\"gap_of_range\":{}}}\n",
                       head.pair.a, head.pair.b, head.layer, head.sequence, head.kvHead, block.block, run,
                       nameOf(block.origin), score, gap, share);
        else
            writer.add("{},{},{},{},{},{},{},{},{},{},{}\n", head.pair.a, head.pair.b, head.layer, head.sequence,
                       head.kvHead, block.block, run, nameOf(block.origin), score, gap, share);
        writer.endRow();
    }
}

void addSums(GapSums& sums, const GapSums& more) {
    sums.heads += more.heads;
    sums.differingHeads += more.differingHeads;
    sums.chosen += more.chosen;
    sums.differing += more.differing;
    sums.scored += more.scored;
    sums.nearTies += more.nearTies;
}

/// Whether the name, without .gz, is of JSON lines. @throws Error(BadInput) where it is not of CSV either
bool isJsonLines(std::string_view path) {
    if (OutputFile::isPacked(path)) path.remove_suffix(3);
    if (path.ends_with(".jsonl")) return true;
    if (path.ends_with(".csv") || !std::filesystem::path(path).has_extension()) return false; // a pipe or device, too
    throw Error(ErrorKind::BadInput, fmt::format("--differences {} has the suffix of no table", path),
                "name it .csv or .jsonl, either with .gz");
}

} // namespace

GapSums writeSelectionDifferences(const TraceReader& a, int runA, const TraceReader& b, int runB,
                                  const std::string& path, const Progress& progress) {
    const StepIndex stepsA = loadStepIndex(a, runA), stepsB = loadStepIndex(b, runB);
    std::string refusal = gapsRefusal(stepsA.run, stepsB.run);
    const Alignment alignment = align(stepsA, stepsB, AlignBy::Step);
    if (refusal.empty()) refusal = alignment.refusal;
    if (!refusal.empty())
        throw Error(ErrorKind::BadInput, fmt::format("the selections cannot be compared one by one: {}", refusal),
                    "compare runs with the same layers, KV heads and block size, recorded at level selections or full");
    const bool jsonl = isJsonLines(path);
    OutputFile file(path);
    LineWriter writer(file.stream());
    if (!jsonl) writer.addText("step_a,step_b,layer,seq,kv_head,block,only,origin,score,gap,gap_of_range\n");
    GapSums sums;
    const std::span<const StepPair> pairs = alignment.pairs;
    try {
        for (std::size_t from = 0; from < pairs.size(); from += kPairsAtOnce) {
            report(progress, double(from) / double(pairs.size()), "comparing selections");
            const auto piece = pairs.subspan(from, std::min(kPairsAtOnce, pairs.size() - from));
            addSums(sums, readSelectionGaps(a, runA, b, runB, piece,
                                            [&](const HeadDifference& head) { add(writer, head, jsonl); }));
        }
        writer.flush();
    } catch (const Error&) {
        file.requireWritten();
        throw;
    }
    file.commit();
    return sums;
}

} // namespace kvscope::cli
