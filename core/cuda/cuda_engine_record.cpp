// What a step reports: marks of the GPU's timer, counters and selections into records of the host's clock.
#include "core/cuda/cuda_engine.h"
#include "core/session/oracle_best.h"
#include "core/session/stage_clock.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvscope {

namespace {

using Bf16 = __nv_bfloat16;

} // namespace

void CudaEngine::calibrateClock() {
    // The tightest of several brackets: host clock before, GPU timer, host clock after.
    std::uint64_t* mark = promptMarks_.front();
    std::int64_t best = std::numeric_limits<std::int64_t>::max();
    for (int i = 0; i < 20; ++i) {
        cuda::check(cudaStreamSynchronize(stream_.get()), "reading the GPU's clock");
        const std::int64_t before = steadyNowNs();
        cuda::stampNow(launch_, mark);
        cuda::check(cudaStreamSynchronize(stream_.get()), "reading the GPU's clock");
        const std::int64_t after = steadyNowNs();
        if (after - before >= best) continue;
        best = after - before;
        clockOffset_ = before + (after - before) / 2 - std::int64_t(*mark);
    }
    originNs_ = steadyNowNs();
}

std::int64_t CudaEngine::stepNs() const {
    const Entry& entry = host_[(waited_ - 1) % kEntries];
    return std::int64_t(entry.stepMarks[kEnd] - entry.stepMarks[kEmbed]);
}

void CudaEngine::fill(StepRecord& record, std::span<const ActiveSequence> active) const {
    const ModelConfig& config = model_->config;
    const Entry& entry = host_[(waited_ - 1) % kEntries];
    const std::uint64_t* step = entry.stepMarks;
    record.startNs = hostTime(step[kEmbed]) - originNs_;
    record.durationNs = std::int64_t(step[kEnd] - step[kEmbed]);
    record.stepStageNs[std::size_t(StepStage::Embed)] = std::int64_t(entry.marks[kQkv] - step[kEmbed]);
    record.stepStageNs[std::size_t(StepStage::LmHead)] = std::int64_t(step[kSample] - step[kLmHead]);
    record.stepStageNs[std::size_t(StepStage::Sample)] = std::int64_t(step[kEnd] - step[kSample]);
    record.layers.assign(std::size_t(config.layers), {});
    const auto blockBytes = std::int64_t(layout_.blockElements * sizeof(Bf16));
    const std::size_t heads = std::size_t(layout_.rows) * std::size_t(layout_.kvHeads);
    for (int i = 0; i < config.layers; ++i) {
        LayerRecord& out = record.layers[std::size_t(i)];
        const Layer& layer = layers_[std::size_t(i)];
        const std::uint64_t* marks = entry.marks + i * kMarks;
        out.startNs = hostTime(marks[kQkv]) - originNs_;
        // Stages follow each other: each ends where the next one begins.
        std::vector<std::pair<Stage, std::uint64_t>> order{{Stage::QkvLinear, marks[kQkv]},
                                                           {Stage::Rope, marks[kRope]}};
        if (layer.indexed) order.emplace_back(Stage::Compression, marks[kCompression]);
        if (chosenAhead(i + 1) || ownAhead(i + 1) || (layer.sparse && !chosenAhead(i))) { // something is chosen here
            order.emplace_back(Stage::Stage1, marks[kStage1]);
            order.emplace_back(Stage::Pooling, marks[kPooling]);
            order.emplace_back(Stage::Offloading, marks[kOffloading]);
        } else if (layer.sparse) {
            order.emplace_back(Stage::Offloading, marks[kReady]);
        }
        order.emplace_back(layer.sparse ? Stage::Stage2 : Stage::Attention, marks[kAttention]);
        order.emplace_back(Stage::OLinear, marks[kOLinear]);
        order.emplace_back(Stage::Ffn, marks[kFfn]);
        const std::uint64_t end = i + 1 < config.layers ? entry.marks[(i + 1) * kMarks + kQkv] : step[kLmHead];
        for (std::size_t s = 0; s < order.size(); ++s) {
            std::uint64_t next = s + 1 < order.size() ? order[s + 1].second : end;
            if (options_.oracle && order[s].first == Stage::Stage2) next = marks[kOracle]; // the rest is "other"
            out.stageNs[std::size_t(order[s].first)] += std::int64_t(next - order[s].second);
        }
        if (layer.offloaded) {
            out.h2dBlocks = std::int32_t(entry.counts[2 * i]);
            out.d2hBlocks = std::int32_t(entry.counts[2 * i + 1]);
            out.h2dBytes = out.h2dBlocks * blockBytes;
            out.d2hBytes = out.d2hBlocks * blockBytes;
            if (ahead_)
                fillTransfers(i, entry, record.step, out);
            else if (out.h2dBlocks + out.d2hBlocks > 0) // on demand: nothing computes while it runs
                out.transferNs = out.exposedNs = std::int64_t(marks[kLoaded] - marks[kGather]);
        }
        if (!layer.sparse) continue;
        const std::size_t firstSelection = record.selections.size();
        std::vector<int> sequences;
        for (const ActiveSequence& sequence : active) sequences.push_back(sequence.sequence);
        const auto complete = [&] {
            if (!selector_) return;
            const char* report = entry.own == nullptr ? nullptr : entry.own + std::size_t(i) * selector_->reportBytes();
            selector_->fill(i, report, sequences, out, record, firstSelection);
        };
        const auto measure = [&](const float* mass, const ActiveSequence& sequence, SelectionRecord& selection) {
            const std::span<const std::int32_t> chosen(record.blocks.data() + selection.first,
                                                       std::size_t(selection.selected));
            double sum = 0;
            for (const std::int32_t block : chosen) sum += double(mass[block]);
            selection.mass = float(std::min(1.0, sum));
            OracleRecord best{record.step, i, sequence.sequence, selection.kvHead};
            const int window = layer.window, tokens = sequence.position + 1;
            const int unit = spec_.unitTokens(),
                      first = window > 0 ? std::max(0, tokens - window) / unit : 0; // in sight
            std::vector<std::int32_t> inSight;
            for (const std::int32_t block : chosen) inSight.push_back(block - first);
            describeSelection({mass + first, std::size_t((tokens + unit - 1) / unit - first)}, inSight,
                              {record.origins.data() + selection.first, chosen.size()}, best);
            keepOracle(best, selection);
            if (options_.oracleObserver != nullptr) options_.oracleObserver->observe(best);
        };
        const auto massesOf = [&](int sequence, int g) {
            return entry.masses + (std::size_t(i) * heads + std::size_t(sequence * layout_.kvHeads + g)) *
                                      std::size_t(layout_.maxUnits);
        };
        if (layer.ownTier) {
            complete();
            auto of = active.begin(); // selections are those of the active sequences in turn
            for (std::size_t s = firstSelection; entry.masses != nullptr && s < record.selections.size(); ++s) {
                SelectionRecord& selection = record.selections[s];
                while (of->sequence != selection.sequence) ++of;
                const float attended = selection.mass; // as the method says
                measure(massesOf(selection.sequence, selection.kvHead), *of, selection);
                if (!std::isnan(attended)) selection.mass = attended;
            }
            continue;
        }
        bool keptDefined = true, any = false;
        int kept = 0;
        for (const ActiveSequence& sequence : active)
            for (int g = 0; g < layout_.kvHeads; ++g) {
                const std::size_t item = std::size_t(i) * heads + std::size_t(sequence.sequence * layout_.kvHeads + g);
                const cuda::SelectionHead& head = entry.heads[item];
                if (head.selected == 0) continue; // attended everything
                any = true;
                SelectionRecord selection;
                selection.layer = i;
                selection.sequence = sequence.sequence;
                selection.kvHead = g;
                selection.selected = head.selected;
                selection.kept = head.kept;
                selection.hits = head.hits;
                selection.misses = head.misses;
                if (layer.offloaded && chosenAhead(i)) { // what was asked for is what is attended
                    selection.predicted = selection.used = head.selected;
                    selection.late = std::int32_t(head.late);
                }
                selection.first = std::uint32_t(record.blocks.size());
                if (entry.blocks != nullptr) {
                    const std::uint32_t* blocks = entry.blocks + item * std::size_t(layout_.capacity);
                    for (int b = 0; b < head.selected; ++b) {
                        record.blocks.push_back(std::int32_t(blocks[b] & 0xffffff));
                        record.origins.push_back(Origin(blocks[b] >> cuda::kOriginShift & 7));
                        record.hit.push_back(std::uint8_t(blocks[b] >> cuda::kHitShift & 1));
                    }
                    if (entry.masses != nullptr) measure(massesOf(sequence.sequence, g), sequence, selection);
                    if (entry.scores != nullptr)
                        record.scores.insert(record.scores.end(), entry.scores + item * std::size_t(layout_.capacity),
                                             entry.scores + item * std::size_t(layout_.capacity) + head.selected);
                }
                out.selected += selection.selected;
                out.hits += selection.hits;
                out.misses += selection.misses;
                keptDefined &= selection.kept >= 0;
                kept += std::max(selection.kept, 0);
                record.selections.push_back(selection);
            }
        out.kept = any && keptDefined ? kept : -1;
        complete();
    }
}

} // namespace kvscope
