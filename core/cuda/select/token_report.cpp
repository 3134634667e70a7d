#include "core/cuda/select/token_report.h"

#include <algorithm>
#include <numeric>

namespace kvscope {

TokenReport::TokenReport(const DeviceSelectorContext& context, int capacity)
    : kvHeads_(context.shape.kvHeads), capacity_(capacity) {
    if (!context.record) return;
    const auto take = [&](std::size_t bytes) {
        const std::size_t at = bytes_;
        bytes_ += (bytes + 15) / 16 * 16;
        return at;
    };
    const auto heads = std::size_t(context.heads()), lists = heads * std::size_t(capacity);
    take(heads * sizeof(cuda::SelectionHead));
    if (context.level != RecordLevel::Counters) tokensAt_ = take(lists * sizeof(std::int32_t));
    if (context.level == RecordLevel::Full) scoresAt_ = take(lists * sizeof(float));
}

cuda::TokenChoiceRecord TokenReport::at(const DeviceStep& step) const {
    cuda::TokenChoiceRecord record;
    record.marks[0] = step.stage1Mark;
    record.marks[1] = step.poolingMark;
    record.marks[2] = step.offloadingMark;
    if (step.report == nullptr) return record;
    record.heads = reinterpret_cast<cuda::SelectionHead*>(step.report);
    if (tokensAt_ > 0) record.tokens = reinterpret_cast<std::int32_t*>(step.report + tokensAt_);
    if (scoresAt_ > 0) record.scores = reinterpret_cast<float*>(step.report + scoresAt_);
    return record;
}

void TokenReport::fill(int layer, const char* report, std::span<const int> active, LayerRecord& out, StepRecord& record,
                       const OriginOf& originOf) const {
    if (report == nullptr) return;
    const auto* heads = reinterpret_cast<const cuda::SelectionHead*>(report);
    bool keptDefined = true;
    int kept = 0;
    std::vector<int> order;
    for (const int sequence : active)
        for (int g = 0; g < kvHeads_; ++g) {
            const int item = sequence * kvHeads_ + g;
            const cuda::SelectionHead& head = heads[item];
            SelectionRecord selection;
            selection.layer = layer;
            selection.sequence = sequence;
            selection.kvHead = g;
            selection.selected = head.selected;
            selection.kept = head.kept;
            selection.hits = head.hits;
            selection.misses = head.misses;
            selection.first = std::uint32_t(record.blocks.size());
            if (tokensAt_ > 0) {
                const std::size_t first = std::size_t(item) * std::size_t(capacity_);
                const auto* tokens = reinterpret_cast<const std::int32_t*>(report + tokensAt_) + first;
                order.resize(std::size_t(head.selected));
                std::iota(order.begin(), order.end(), 0);
                std::sort(order.begin(), order.end(), [&](int a, int b) { return tokens[a] < tokens[b]; });
                const std::int32_t newest = order.empty() ? -1 : tokens[order.back()];
                for (const int i : order) {
                    record.blocks.push_back(tokens[i]);
                    record.origins.push_back(originOf(sequence, tokens[i], newest));
                    record.hit.push_back(head.misses == 0 || (head.hits > 0 && tokens[i] == newest) ? 1 : 0);
                    if (scoresAt_ > 0)
                        record.scores.push_back(
                            reinterpret_cast<const float*>(report + scoresAt_)[first + std::size_t(i)]);
                }
            }
            out.selected += selection.selected;
            out.hits += selection.hits;
            out.misses += selection.misses;
            keptDefined &= selection.kept >= 0;
            kept += std::max(selection.kept, 0);
            record.selections.push_back(selection);
        }
    out.kept = keptDefined ? kept : -1;
}

} // namespace kvscope
