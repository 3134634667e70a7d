#include "bench/cuda/grid_jobs.h"

#include "core/trace/stage.h"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace kvscope::bench::grids {
namespace {

struct GridCell {
    int context, equivalentBatch, resident; // resident: batch whose whole KV fits the same memory, as the paper runs it
    double paper;                           // NOSA on NOSI, offloaded, tokens/s on an A800
};
constexpr GridCell kCells[] = {
    {16384, 16, 4, 743.18}, {16384, 32, 8, 1056.27}, {16384, 64, 16, 1630.80}, {16384, 128, 32, 1961.17},
    {32768, 16, 2, 694.58}, {32768, 32, 4, 1067.32}, {32768, 64, 8, 1574.47},  {32768, 128, 16, 1536.19},
    {65536, 8, 1, 312.39},  {65536, 16, 1, 545.08},  {65536, 32, 2, 763.82},   {65536, 64, 4, 1378.82},
    {98304, 8, 1, 283.44},  {98304, 16, 1, 542.03},  {98304, 32, 2, 666.59},   {98304, 64, 4, 1080.45},
};

const Json* find(const Json& rows, const char* method, bool offload, int context, int equivalentBatch) {
    for (const Json& row : rows)
        if (row.contains("step_ms") && row["method"] == method && row["offload"] == offload &&
            row["context"] == context && row.value("equivalent_batch", 0) == equivalentBatch)
            return &row;
    return nullptr;
}

constexpr int kBudgetsGb[] = {2, 8, 24};

constexpr std::pair<int, int> kOperatorShapes[] = {{32768, 1}, {32768, 8},  {65536, 1},
                                                   {65536, 8}, {131072, 1}, {131072, 4}}; // context, batch

/// Microseconds a layer spends on attention and on whatever chooses for it.
double operatorUs(const Json& row) {
    double sum = 0;
    for (const Stage stage :
         {Stage::Compression, Stage::Stage1, Stage::Pooling, Stage::Offloading, Stage::Stage2, Stage::Attention})
        sum += row.value("stage_us_" + std::string(nameOf(stage)), 0.0);
    return sum;
}

} // namespace

// ---- Table 2 of the NOSA paper

std::vector<DecodeJob> tableJobs() {
    std::vector<DecodeJob> jobs;
    for (const GridCell& cell : kCells)
        for (const DecodeJob& each :
             {job("full", cell.context, cell.resident), job("infllmv2", cell.context, cell.resident),
              job("nosa", cell.context, cell.resident),
              job("infllmv2", cell.context, cell.equivalentBatch, kInfllmLocality),
              job("nosa", cell.context, cell.equivalentBatch, kNosaLocality)}) {
            jobs.push_back(each);
            jobs.back().equivalentBatch = cell.equivalentBatch;
        }
    return jobs;
}

Json tableConclusions(const Json& rows) {
    Json out = Json::array();
    for (const GridCell& cell : kCells) {
        const Json* nosa = find(rows, "nosa", true, cell.context, cell.equivalentBatch);
        if (nosa == nullptr) continue;
        Json entry{{"context", cell.context}, {"equivalent_batch", cell.equivalentBatch}};
        const auto ratio = [&](const char* key, const char* method, bool offload) {
            if (const Json* other = find(rows, method, offload, cell.context, cell.equivalentBatch))
                entry[key] = tokensPerSecond(*nosa) / tokensPerSecond(*other);
        };
        ratio("nosa_offload_over_full", "full", false);
        ratio("nosa_offload_over_infllmv2_offload", "infllmv2", true);
        ratio("nosa_offload_over_nosa_resident", "nosa", false);
        entry["tokens_per_s_over_paper"] = tokensPerSecond(*nosa) / cell.paper;
        entry["hit_rate"] = nosa->value("hit_rate", 0.0);
        out.push_back(std::move(entry));
    }
    return {{"cells", std::move(out)}};
}

// ---- Synchronous fetch, and one layer ahead

/// SparDA's own model and budget (MiniCPM4.1: 96 blocks, a window of 32) over InfLLM-V2, its transfers a kernel for
/// each layer and one for the step. Random weights forecast nothing: prediction and selection are the same planted,
/// drifting set, so this measures the transfers and not the forecast. Every method also runs with a set that stays,
/// which transfers next to nothing: its bound.
std::vector<DecodeJob> lookaheadJobs() {
    std::vector<DecodeJob> jobs;
    for (const auto& [context, batch] :
         {std::pair{131072, 4}, {131072, 8}, {131072, 16}, {131072, 32}, {131072, 64}, {32768, 64}})
        for (const double locality : {kInfllmLocality, 0.8, kNosaLocality, kEverythingHits})
            for (const auto& [method, loop] : {std::pair{"infllmv2", false}, {"sparda", false}, {"sparda", true}}) {
                DecodeJob& each = jobs.emplace_back(job(method, context, batch, locality));
                each.shape = "minicpm4-8b";
                each.parameters = {{"total_blocks", "96"}, {"window_blocks", "32"}};
                if (std::string_view(method) == "sparda") each.parameters.emplace_back("backbone", "infllmv2");
                each.transferLoop = loop;
                each.storedSequences = kStoredSequences;
                each.note = "planted prediction and selection";
            }
    return jobs;
}

/// Of these the batches whose transfers a layer can hide, without the kernel for each layer.
std::vector<DecodeJob> hiddenTransferJobs() {
    std::vector<DecodeJob> jobs = lookaheadJobs();
    std::erase_if(jobs, [](const DecodeJob& each) {
        return each.batch > 16 || each.gamma == kNosaLocality || each.gamma == kEverythingHits ||
               (each.method == "sparda" && each.transferLoop == false);
    });
    return jobs;
}

Json lookaheadConclusions(const Json& rows) {
    Json out = Json::array();
    const auto same = [](const Json& a, const Json& b, const char* method, const Json& selection) {
        return b.contains("step_ms") && b["context"] == a["context"] && b["batch"] == a["batch"] &&
               b["method"] == method && b["selection"] == selection;
    };
    const auto transfers = [](const Json& row) { return row.value("transfers", "a kernel for each layer"); };
    for (const Json& ahead : rows) {
        if (!ahead.contains("step_ms") || ahead["method"] != "sparda" || ahead["selection"] == "planted:1") continue;
        const Json *waits = nullptr, *bound = nullptr;
        for (const Json& other : rows) {
            if (same(ahead, other, "infllmv2", ahead["selection"])) waits = &other;
            if (same(ahead, other, "sparda", "planted:1") && transfers(other) == transfers(ahead)) bound = &other;
        }
        if (waits == nullptr) continue;
        const auto ms = [](const Json& row, const char* key) { return row[key].get<double>(); };
        Json entry{{"context", ahead["context"]},
                   {"batch", ahead["batch"]},
                   {"selection", ahead["selection"]},
                   {"transfers", transfers(ahead)},
                   {"ahead_over_waiting", tokensPerSecond(ahead) / tokensPerSecond(*waits)},
                   {"exposed_over_waiting", ms(ahead, "exposed_ms") / std::max(1e-9, ms(*waits, "exposed_ms"))},
                   // No schedule is faster than the link at the rate of a large copy.
                   {"link_allows_over_waiting", ms(*waits, "step_ms") / ms(ahead, "link_floor_ms")}};
        if (bound != nullptr) {
            entry["ahead_over_no_transfers"] = tokensPerSecond(ahead) / tokensPerSecond(*bound);
            entry["best_over_waiting"] =
                ms(*waits, "step_ms") / std::max(ms(ahead, "link_floor_ms"), ms(*bound, "step_ms"));
        }
        out.push_back(std::move(entry));
    }
    return {{"lookahead", std::move(out)}};
}

// ---- Under a budget of GPU memory for keys and values

/// Sequences of 16K whose keys and values fit: all of them, or 4096 tokens' slots each.
std::vector<DecodeJob> budgetJobs() {
    constexpr std::int64_t kTokenBytes = std::int64_t(32) * 2 * 128 * 2 * 2; // 8B: 32 layers, 2 KV heads, K and V
    std::vector<DecodeJob> jobs;
    for (const int gb : kBudgetsGb) {
        const std::int64_t tokens = std::int64_t(gb) * 1'000'000'000 / kTokenBytes;
        const int whole = std::max(1, int(tokens / 16384)), slots = std::max(1, int(tokens / 4096));
        for (const DecodeJob& each :
             {job("full", 16384, whole), job("nosa", 16384, whole), job("infllmv2", 16384, slots, kInfllmLocality),
              job("nosa", 16384, slots, kNosaLocality), job("nosa", 16384, slots)}) {
            jobs.push_back(each);
            jobs.back().note = fmt::format("{} GB of keys and values on the GPU", gb);
            if (!each.offload && each.batch == slots) jobs.back().note = "no limit, everything resident";
        }
    }
    return jobs;
}

// ---- Methods with a memory of their own

/// Random weights: what a query chooses has less to do with the last one than on text, so more is moved.
std::vector<DecodeJob> methodJobs() {
    std::vector<DecodeJob> jobs;
    for (const auto& [context, batch] : {std::pair{32768, 4}, std::pair{32768, 16}, std::pair{131072, 4}})
        for (const char* method : {"full", "quest", "arkvale", "infllm", "shadowkv"}) {
            DecodeJob& each = jobs.emplace_back(job(method, context, batch));
            each.shape = "llama3-8b";
            each.offload = each.method != "full";
            each.steps = 24;
            if (each.method == "quest") // blocks as large as the link likes them, and as many as the GPU counts
                each.parameters = {{"block_size", "64"}, {"sink_blocks", "1"}, {"window_blocks", "1"}};
        }
    return jobs;
}

// ---- Attention and its selection as an operator, as AsyncTLS's paper measures them

/// The paper's model and budgets: full attention, Double Sparsity over all tokens, AsyncTLS inside 128 blocks, nothing
/// offloaded; and AsyncTLS from the host against the batch whose keys and values the paper's GPU holds.
std::vector<DecodeJob> operatorJobs() {
    std::vector<DecodeJob> jobs;
    for (const auto& [context, batch] : kOperatorShapes)
        for (const char* method : {"full", "double-sparsity", "asynctls"}) {
            DecodeJob& each = jobs.emplace_back(job(method, context, batch));
            each.shape = "qwen3-8b";
            each.steps = 16;
            if (each.method == "double-sparsity") each.parameters = {{"heavy_tokens", "512"}};
            if (each.method == "asynctls") each.parameters = {{"k_t", "512"}};
        }
    for (const auto& [method, batch, locality] :
         {std::tuple{"full", 1, -1.0}, {"asynctls", 6, kInfllmLocality}, {"asynctls", 6, kEverythingHits}}) {
        DecodeJob& each = jobs.emplace_back(job(method, 98304, batch, locality));
        each.shape = "qwen3-8b";
        each.steps = 16;
        if (each.method == "asynctls") each.parameters = {{"k_t", "512"}};
    }
    return jobs;
}

Json operatorConclusions(const Json& rows) {
    Json operators = Json::array(), offloaded = Json::array();
    for (const Json& row : rows) {
        if (!row.contains("step_ms") || row["method"] != "asynctls") continue;
        Json entry{{"context", row["context"]}, {"batch", row["batch"]}, {"operator_us", operatorUs(row)}};
        for (const Json& other : rows) {
            if (!other.contains("step_ms") || other["context"] != row["context"] || other["method"] == "asynctls")
                continue;
            const std::string name = other["method"];
            if (row["offload"] == true) {
                entry["selection"] = row["selection"];
                entry["tokens_per_s_over_" + name + "_at_batch_1"] = tokensPerSecond(row) / tokensPerSecond(other);
            } else if (other["batch"] == row["batch"]) {
                entry[name + "_operator_us"] = operatorUs(other);
                entry["over_" + name] = operatorUs(other) / operatorUs(row);
                entry["step_over_" + name] = other["step_ms"].get<double>() / row["step_ms"].get<double>();
            }
        }
        (row["offload"] == true ? offloaded : operators).push_back(std::move(entry));
    }
    return {{"operators", std::move(operators)}, {"offloaded", std::move(offloaded)}};
}

} // namespace kvscope::bench::grids
