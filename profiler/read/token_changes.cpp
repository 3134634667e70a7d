#include "profiler/read/token_changes.h"

#include "profiler/format/trace_keys.h"
#include "profiler/read/denoising.h"
#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <functional>
#include <map>

namespace kvscope {

double ChangeRanks::cumulated(int tokens) const {
    double sum = 0;
    for (std::size_t rank = 0; rank < std::min(share.size(), std::size_t(std::max(tokens, 0))); ++rank)
        sum += share[rank];
    return sum;
}

void ChangeRanker::add(std::span<const float> changes) {
    sorted_.clear();
    double whole = 0;
    for (const float change : changes) {
        sorted_.push_back(std::isfinite(change) && change > 0 ? double(change) : 0);
        whole += sorted_.back();
    }
    if (whole <= 0) return;
    std::sort(sorted_.begin(), sorted_.end(), std::greater<>());
    sums_.resize(std::max(sums_.size(), sorted_.size()));
    double reached = 0;
    for (std::size_t rank = 0; rank < sorted_.size(); ++rank) {
        if (reached < whole / 2) ++tokensForHalf_;
        reached += sorted_[rank];
        sums_[rank] += sorted_[rank] / whole;
    }
    ++forwards_;
}

ChangeRanks ChangeRanker::ranks(int layer) const {
    ChangeRanks out;
    out.layer = layer;
    out.forwards = forwards_;
    if (forwards_ == 0) return out;
    for (const double sum : sums_) out.share.push_back(sum / double(forwards_));
    out.forHalf = double(tokensForHalf_) / double(forwards_);
    return out;
}

std::vector<ChangeRanks> readChangeRanks(const TraceReader& reader, int runId, ChangeOf of) {
    std::vector<ChangeRanks> out;
    const auto& impl = ReaderAccess::of(reader);
    if (runId < 1 || runId > trace::kMaxRuns || !impl.hasTable("denoise_layer")) return out;
    const auto [low, high] = trace::keysOfSteps(runId, 0, trace::kMaxStep, trace::kSelectionShift);
    constexpr const char* kColumns[] = {"changes", "key_changes", "value_changes"};
    Statement rows(*impl.connection,
                   fmt::format("SELECT id, {0} FROM {1} WHERE id BETWEEN ? AND ? AND {0} IS NOT NULL ORDER BY id",
                               kColumns[int(of)], of == ChangeOf::Queries ? "denoise_layer" : "denoise_change"));
    rows.bindAll(low, high);
    std::map<int, ChangeRanker> layers;
    std::vector<float> changes;
    while (rows.step()) {
        const std::span<const std::byte> blob = rows.blob(1);
        changes.resize(blob.size() / sizeof(float));
        if (changes.empty()) continue;
        std::memcpy(changes.data(), blob.data(), changes.size() * sizeof(float));
        layers[int(rows.int64(0) >> 20 & 1023)].add(changes);
    }
    for (const auto& [layer, ranker] : layers)
        if (ranker.forwards() > 0) out.push_back(ranker.ranks(layer));
    return out;
}

std::optional<MiddleForward> readMiddleForward(const TraceReader& reader, int runId) {
    const auto& impl = ReaderAccess::of(reader);
    if (runId < 1 || runId > trace::kMaxRuns) return std::nullopt;
    Statement blocks(*impl.connection, "SELECT block, count(*) FROM v_denoise WHERE run_id = ? AND seq = 0 AND kind ="
                                       " 'denoise' GROUP BY block ORDER BY 2 DESC, 1 LIMIT 1");
    blocks.bind(1, runId);
    if (!blocks.step() || blocks.int64(1) < 2) return std::nullopt;
    MiddleForward out;
    out.block = int(blocks.int64(0)), out.step = int(blocks.int64(1)) / 2;
    Statement layers(*impl.connection, "SELECT count(DISTINCT layer) FROM v_denoise_change WHERE run_id = ?");
    layers.bind(1, runId);
    out.layer = layers.step() ? int(layers.int64(0)) / 2 : 0;
    Statement row(*impl.connection,
                  "SELECT l.changes, c.key_changes, c.value_changes FROM v_denoise d JOIN v_denoise_layer l USING"
                  " (run_id, step, seq) JOIN v_denoise_change c USING (run_id, step, layer, seq) WHERE d.run_id = ? AND"
                  " d.seq = 0 AND d.block = ? AND d.denoise_step = ? AND l.layer = ? AND l.kv_head = 0");
    row.bindAll(runId, out.block, out.step, out.layer);
    if (!row.step()) return std::nullopt;
    std::vector<float>* const of[] = {&out.queries, &out.keys, &out.values};
    for (int column = 0; column < 3; ++column) {
        const std::span<const std::byte> blob = row.blob(column);
        of[column]->resize(blob.size() / sizeof(float));
        if (!of[column]->empty()) std::memcpy(of[column]->data(), blob.data(), of[column]->size() * sizeof(float));
    }
    if (out.queries.empty() || out.queries.size() != out.keys.size() || out.keys.size() != out.values.size())
        return std::nullopt;
    return out;
}

std::vector<ChangeByAge> readChangeByAge(const TraceReader& reader, int runId) {
    struct Sum {
        std::int64_t tokens = 0;
        double change = 0;
    };
    std::map<int, Sum> ages;
    const RunRow run = ReaderAccess::of(reader).known(runId);
    DenoiseRequest request;
    request.runId = runId;
    for (request.sequence = 0; request.sequence < run.sequences; ++request.sequence) {
        const ForwardRows forwards = readForwards(reader, request, 0, std::max(run.steps - 1, 0));
        std::map<std::int32_t, int> writtenIn; // by position: the forward of its block that wrote it
        for (const ForwardRow& row : forwards.rows)
            for (const ForwardCell& cell : forwards.cellsOf(row)) {
                const auto written = writtenIn.find(cell.position);
                if (std::isfinite(cell.change) && (cell.masked() || written != writtenIn.end())) {
                    Sum& sum = ages[cell.masked() ? 0 : row.denoiseStep - written->second];
                    ++sum.tokens;
                    sum.change += double(cell.change);
                }
                if (cell.written) writtenIn[cell.position] = row.denoiseStep;
            }
    }
    std::vector<ChangeByAge> out;
    for (const auto& [age, sum] : ages) out.push_back({age, sum.tokens, sum.change / double(sum.tokens)});
    return out;
}

} // namespace kvscope
