#include "bench/cuda/decode_grids.h"

#include "base/error.h"
#include "core/trace/stage.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <tuple>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;

// NOSA keeps 5.5 points more than InfLLM-V2, "roughly half the misses" (NOSA, section 5): 0.945 against 0.89.
constexpr double kNosaLocality = 0.945, kInfllmLocality = 0.89;

DecodeJob job(const char* method, int context, int batch, double offloadedGamma = -1) {
    DecodeJob job;
    job.method = method;
    job.context = context;
    job.batch = batch;
    job.steps = 48;
    job.offload = offloadedGamma >= 0;
    job.gamma = offloadedGamma;
    return job;
}

const Json* find(const Json& rows, const char* method, bool offload, int context, int equivalentBatch) {
    for (const Json& row : rows)
        if (row.contains("step_ms") && row["method"] == method && row["offload"] == offload &&
            row["context"] == context && row.value("equivalent_batch", 0) == equivalentBatch)
            return &row;
    return nullptr;
}

double tokensPerSecond(const Json& row) { return row["tokens_per_s"].get<double>(); }

// ---- The steps whose limits the docs and results give

std::vector<DecodeJob> stepJobs() {
    std::vector<DecodeJob> jobs;
    for (const char* shape : {"nosa-1b", "nosa-3b", "nosa-8b"}) {
        jobs.push_back(job("full", 512, 1));
        jobs.back().shape = shape;
    }
    for (const int context : {16384, 98304}) jobs.push_back(job("nosa", context, 4));
    jobs.push_back(job("full", 16384, 4));
    for (const int batch : {16, 64}) {
        jobs.push_back(job("nosa", 16384, batch, kNosaLocality));
        jobs.push_back(job("infllmv2", 16384, batch, kInfllmLocality));
    }
    return jobs;
}

Json noConclusions(const Json&) { return Json::object(); }

// ---- Table 2 of the NOSA paper

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

// ---- Exposed transfer time, reported and by ablation

constexpr double kEverythingHits = 1;
constexpr int kExposureRounds = 3; // a step and its ablations in turns: clocks and neighbours drift

std::vector<DecodeJob> exposureJobs() {
    std::vector<DecodeJob> jobs;
    for (const int batch : {4, 16, 64})
        for (int round = 0; round < kExposureRounds; ++round) {
            for (const double gamma : {kNosaLocality, 0.8})
                for (const bool moves : {true, false}) {
                    jobs.push_back(job("nosa", 16384, batch, gamma));
                    jobs.back().moveBlocks = moves;
                }
            jobs.push_back(job("nosa", 16384, batch, kEverythingHits));
        }
    return jobs;
}

/// Median over the rounds of a job; 0 where it did not run.
double exposureMedian(const Json& rows, const Json& batch, const std::string& selection, bool moves, const char* key) {
    std::vector<double> values;
    for (const Json& row : rows)
        if (row.contains(key) && row["batch"] == batch && row["selection"] == selection &&
            row.value("moves_blocks", true) == moves)
            values.push_back(row[key].get<double>());
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

/// Two ablations: the same misses are found and listed, but no block moves; and selections that do not change, which
/// also saves what finding and listing misses takes.
Json exposureConclusions(const Json& rows) {
    Json out = Json::array();
    const std::string hits = fmt::format("planted:{}", kEverythingHits);
    for (const int batch : {4, 16, 64})
        for (const double gamma : {kNosaLocality, 0.8}) {
            const std::string selection = fmt::format("planted:{}", gamma);
            const auto median = [&](const std::string& of, bool moves, const char* key) {
                return exposureMedian(rows, batch, of, moves, key);
            };
            const double step = median(selection, true, "step_ms"), still = median(selection, false, "step_ms"),
                         fixed = median(hits, true, "step_ms"), reported = median(selection, true, "exposed_ms");
            if (still == 0 || fixed == 0 || step <= std::max(still, fixed))
                continue; // nothing exposed that could be told from noise
            const double reportedBeside = reported - median(hits, true, "exposed_ms"),
                         link = median(selection, true, "link_floor_ms") - median(hits, true, "link_floor_ms");
            out.push_back({{"batch", batch},
                           {"selection", selection},
                           {"exposed_reported_ms", reported},
                           {"exposed_by_ablation_ms", step - still},
                           {"reported_over_ablation", reported / (step - still)},
                           {"step_beside_fixed_selection_ms", step - fixed},
                           {"reported_over_step_beside_fixed_selection", reportedBeside / (step - fixed)},
                           {"step_over_compute_plus_copy", step / (fixed + link)}});
        }
    return {{"exposure", std::move(out)}};
}

// ---- What recording costs

std::vector<DecodeJob> recordingJobs() {
    std::vector<DecodeJob> jobs;
    for (const int batch : {1, 16})
        for (const char* what : {"off", "selections", "kernels", "sampled kernels", "off again", "selections again",
                                 "kernels again", "sampled kernels again"}) {
            DecodeJob each = job("nosa", 16384, batch);
            each.steps = 128;
            each.note = what;
            each.record = !each.note.starts_with("off");
            if (each.note.find("kernels") != std::string::npos) {
                each.trace = "bench-recording.kvtrace", each.level = RecordLevel::Full;
                each.pcie = each.note.starts_with("sampled") ? PcieCounting::Pm : PcieCounting::Nvml;
            }
            jobs.push_back(each);
        }
    return jobs;
}

Json recordingConclusions(const Json& rows) {
    Json out = Json::array();
    for (const int batch : {1, 16}) {
        const auto best = [&](std::string_view what) {
            double ms = 0;
            for (const Json& row : rows)
                if (row.contains("step_ms") && row["batch"] == batch &&
                    row["note"].get<std::string>().starts_with(what))
                    ms = ms == 0 ? row["step_ms"].get<double>() : std::min(ms, row["step_ms"].get<double>());
            return ms;
        };
        out.push_back({{"batch", batch},
                       {"off_over_selections", best("off") / best("selections")},
                       {"off_over_kernels", best("off") / best("kernels")},
                       {"off_over_sampled_kernels", best("off") / best("sampled kernels")}});
    }
    return {{"recording", std::move(out)}};
}

// ---- The headline's rows (bench/headline)

std::vector<DecodeJob> batchOneJobs() {
    std::vector<DecodeJob> jobs;
    for (const char* shape : {"nosa-8b", "nosa-3b", "nosa-1b"}) {
        jobs.push_back(job("full", 512, 1));
        jobs.back().shape = shape;
        jobs.back().steps = 200;
    }
    return jobs;
}

std::vector<DecodeJob> contextJobs() { return {job("nosa", 16384, 4), job("nosa", 98304, 4)}; }

std::vector<DecodeJob> batchJobs() {
    std::vector<DecodeJob> jobs;
    for (const int batch : {1, 2, 4, 8, 16, 32, 64, 128, 256}) jobs.push_back(job("nosa", 4096, batch));
    for (const int batch : {1, 2, 4, 8, 16, 32, 64, 128, 192, 256}) jobs.push_back(job("nosa", 16384, batch));
    for (const int batch : {1, 2, 4, 8, 16, 32}) jobs.push_back(job("nosa", 98304, batch));
    return jobs;
}

/// Each batch with its misses and without, so that computing alone is known.
std::vector<DecodeJob> offloadedJobs() {
    std::vector<DecodeJob> jobs;
    for (const int batch : {16, 64, 128})
        for (const double locality : {kNosaLocality, kEverythingHits})
            jobs.push_back(job("nosa", 16384, batch, locality));
    return jobs;
}

/// A sequence of 96K tokens takes 3.2 GB of the host, one of 128K 4.3: more of them than this read what the first ones
/// stored.
constexpr int kStoredSequences = 16;

/// NOSA whose blocks the layer before chooses, each batch with its misses and without. Random weights forecast nothing:
/// what is forecast is planted, as what is chosen is.
std::vector<DecodeJob> aheadJobs() {
    std::vector<DecodeJob> jobs;
    for (const int batch : {16, 64, 128})
        for (const double locality : {kNosaLocality, kEverythingHits}) {
            jobs.push_back(job("nosa", 16384, batch, locality));
            jobs.back().parameters = {{"ahead", "forecast"}};
            jobs.back().storedSequences = kStoredSequences;
        }
    return jobs;
}

/// What 16,384 tokens of a 96K context, 64 pools of 4,096 tokens, or the same bytes of 8-bit blocks make of the same
/// GPU memory; and NOSA beside InfLLM-V2 where its fewer misses count most.
std::vector<DecodeJob> sameMemoryJobs() {
    constexpr int kContext = 98304, kResident = 4, kPools = 64;
    std::vector<DecodeJob> jobs{job("full", kContext, kResident), job("nosa", kContext, kPools, kNosaLocality),
                                job("nosa", kContext, kPools, kNosaLocality)};
    jobs[0].note = "full", jobs[1].note = "offloaded", jobs[2].note = "ahead";
    jobs[2].parameters = {{"ahead", "forecast"}};
    for (const DecodeJob& each :
         {job("full", kContext, 2 * kResident), job("nosa", kContext, 2 * kPools, kNosaLocality)}) {
        jobs.push_back(each);
        jobs.back().kvType = KvType::INT8;
        jobs.back().note = each.offload ? "offloaded, 8 bits" : "full, 8 bits";
    }
    for (const auto& [method, locality] : {std::pair{"nosa", kNosaLocality}, {"infllmv2", kInfllmLocality}}) {
        jobs.push_back(job(method, 16384, 128, locality));
        jobs.back().note = std::string(method) + ", 16K";
    }
    for (DecodeJob& each : jobs)
        if (each.offload) each.storedSequences = kStoredSequences;
    return jobs;
}

/// Blocks of bf16, of 8 and of 4 bits on the host, the link and in slots.
std::vector<DecodeJob> kvTypeJobs() {
    std::vector<DecodeJob> jobs;
    for (const KvType type : {KvType::BF16, KvType::INT8, KvType::INT4}) {
        jobs.push_back(job("nosa", 16384, 4, kNosaLocality));
        jobs.back().kvType = type;
        jobs.back().steps = 128;
    }
    return jobs;
}

/// The same at batches whose attention is most of a layer, and with as many slots as the bytes of bf16's allow.
std::vector<DecodeJob> kvSlotJobs() {
    std::vector<DecodeJob> jobs;
    const auto add = [&](int batch, KvType type) -> DecodeJob& {
        jobs.push_back(job("nosa", 16384, batch, kNosaLocality));
        jobs.back().kvType = type;
        jobs.back().storedSequences = 8;
        return jobs.back();
    };
    for (const int batch : {16, 64})
        for (const KvType type : {KvType::BF16, KvType::INT8, KvType::FP8, KvType::INT4}) add(batch, type);
    DecodeJob& roomy = add(16, KvType::INT8);
    roomy.slots = 123; // and a bf16 block are 64 bf16 blocks
    roomy.leastRecentlyUsed = true;
    roomy.note = "as many slots as the bytes of 64 bf16 blocks allow";
    return jobs;
}

std::vector<DecodeJob> recordedJobs() {
    std::vector<DecodeJob> jobs = recordingJobs();
    std::erase_if(jobs, [](const DecodeJob& each) { return each.note.starts_with("sampled"); });
    return jobs;
}

// ---- A long answer

std::vector<DecodeJob> longJobs() {
    DecodeJob each = job("nosa", 16384, 16, kNosaLocality);
    each.steps = 1216;
    return {each};
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

constexpr int kBudgetsGb[] = {2, 8, 24};

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

constexpr std::pair<int, int> kOperatorShapes[] = {{32768, 1}, {32768, 8},  {65536, 1},
                                                   {65536, 8}, {131072, 1}, {131072, 4}}; // context, batch

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

/// Microseconds a layer spends on attention and on whatever chooses for it.
double operatorUs(const Json& row) {
    double sum = 0;
    for (const Stage stage :
         {Stage::Compression, Stage::Stage1, Stage::Pooling, Stage::Offloading, Stage::Stage2, Stage::Attention})
        sum += row.value("stage_us_" + std::string(nameOf(stage)), 0.0);
    return sum;
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

} // namespace

std::span<const DecodeGrid> decodeGrids() {
    static constexpr std::array table{
        DecodeGrid{"steps", "How close do steps come to the floor of their bytes?", stepJobs, noConclusions},
        DecodeGrid{"table2", "Throughput at matched GPU memory, as in Table 2 of the NOSA paper", tableJobs,
                   tableConclusions},
        DecodeGrid{"exposure", "Is the reported exposed transfer time what transfers really cost?", exposureJobs,
                   exposureConclusions},
        DecodeGrid{"recording", "What do recording and kernel tracing cost?", recordingJobs, recordingConclusions},
        DecodeGrid{"one", "How close do steps of one sequence come to the floor of their bytes?", batchOneJobs,
                   noConclusions},
        DecodeGrid{"contexts", "What does a context of 96K cost beside one of 16K?", contextJobs, noConclusions},
        DecodeGrid{"batches", "What does a step take from one sequence to 256?", batchJobs, noConclusions},
        DecodeGrid{"offloaded", "What do transfers add to a step, and how fast is it beside the paper's?",
                   offloadedJobs, noConclusions},
        DecodeGrid{"ahead", "What does a layer's lookahead leave of the transfers of offloaded nosa?", aheadJobs,
                   noConclusions},
        DecodeGrid{"same-memory", "What do offloaded pools gain over full attention in the same GPU memory?",
                   sameMemoryJobs, noConclusions},
        DecodeGrid{"kv-types", "What do blocks of 8 and 4 bits save of a step?", kvTypeJobs, noConclusions},
        DecodeGrid{"kv-slots", "What do slots of 8 and 4 bits save of attention, and what do more of them hold?",
                   kvSlotJobs, noConclusions},
        DecodeGrid{"recorded", "What do recording and kernel tracing cost, without the GPU's counters?", recordedJobs,
                   noConclusions},
        DecodeGrid{"long", "Does throughput hold over a long answer?", longJobs, noConclusions},
        DecodeGrid{"lookahead", "What does fetching one layer ahead hide of the transfers?", lookaheadJobs,
                   lookaheadConclusions},
        DecodeGrid{"hidden-transfers", "The same, of the batches whose transfers a layer can hide", hiddenTransferJobs,
                   lookaheadConclusions},
        DecodeGrid{"budgets", "What do 2, 8 and 24 GB of GPU memory for keys and values allow?", budgetJobs,
                   noConclusions},
        DecodeGrid{"methods", "What do methods with a memory of their own cost, and what do they move?", methodJobs,
                   noConclusions},
        DecodeGrid{"operators", "What does choosing tokens inside blocks save of attention and selection?",
                   operatorJobs, operatorConclusions},
    };
    return table;
}

const DecodeGrid& findDecodeGrid(std::string_view name) {
    std::string known;
    for (const DecodeGrid& grid : decodeGrids()) {
        if (grid.name == name) return grid;
        known += fmt::format("{}{}", known.empty() ? "" : ", ", grid.name);
    }
    throw Error(ErrorKind::BadInput, fmt::format("unknown grid '{}'", name), "known grids: " + known);
}

} // namespace kvscope::bench
