#include "core/cuda/select/token_report.h"

#include "kernels/cuda/methods/token_record.h"

#include <algorithm>
#include <bit>
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
    const Elements heads(context.heads()), lists(heads, capacity);
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

namespace {

/// Finds the places of a list in the order of its tokens. A step can bring hundreds of lists with tens of thousands of
/// tokens each. The lists are not sorted where methods use places again, so they are sorted here with a bitmap, which
/// takes time in proportion to the tokens.
class Order {
public:
    const std::vector<std::int32_t>& of(std::span<const std::int32_t> tokens) {
        places_.resize(tokens.size());
        std::iota(places_.begin(), places_.end(), 0);
        if (tokens.empty() || std::is_sorted(tokens.begin(), tokens.end())) return places_;
        const std::int32_t most = *std::max_element(tokens.begin(), tokens.end());
        marked_.assign(most / 64 + 1, 0);
        if (placeOf_.count() <= most) placeOf_.resize(most + 1);
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            const std::int32_t token = tokens[i];
            marked_[token / 64] |= std::uint64_t(1) << token % 64;
            placeOf_[token] = std::int32_t(i);
        }
        auto to = places_.begin();
        for (int word = 0; word < marked_.count(); ++word)
            for (std::uint64_t bits = marked_[word]; bits != 0; bits &= bits - 1)
                *to++ = placeOf_[word * 64 + std::countr_zero(bits)];
        return places_;
    }

private:
    std::vector<std::int32_t> places_;
    Numbered<std::int32_t> placeOf_; // [token]
    Numbered<std::uint64_t> marked_; // a bit for each token
};

} // namespace

void TokenReport::compare(const DeviceSelectorContext& context, const DeviceStep& step, const Chosen& chosen) const {
    cuda::RecordChoiceArgs args;
    args.rows = context.rows();
    args.kvHeads = kvHeads_;
    args.position = step.position;
    args.active = step.active;
    args.tokens = chosen.tokens;
    args.tokenScores = chosen.scores;
    args.count = chosen.count;
    args.capacity = capacity_;
    args.loads = context.offload;
    args.previous = chosen.previous;
    args.previousCount = chosen.previousCount;
    args.record = at(step);
    cuda::recordChoice(context.launch, args);
}

void TokenReport::fill(LayerId layer, const char* report, std::span<const RowId> active, LayerRecord& out,
                       StepRecord& record, Origin origin, const FirstRecent& firstRecent) const {
    if (report == nullptr) return;
    const auto* heads = reinterpret_cast<const cuda::SelectionHead*>(report);
    bool keptDefined = true;
    int kept = 0;
    Order order;
    for (const RowId sequence : active)
        for (int g = 0; g < kvHeads_; ++g) {
            const int item = int(sequence) * kvHeads_ + g;
            const cuda::SelectionHead& head = heads[item];
            SelectionRecord selection;
            selection.layer = int(layer);
            selection.sequence = int(sequence);
            selection.kvHead = g;
            selection.selected = head.selected;
            selection.kept = head.kept;
            selection.hits = head.hits;
            selection.misses = head.misses;
            selection.first = std::uint32_t(record.blocks.size());
            if (tokensAt_ > 0) {
                const auto* tokens = RowsOf(reinterpret_cast<const std::int32_t*>(report + tokensAt_), capacity_)[item];
                const auto& places = order.of({tokens, Elements(head.selected)});
                const std::int32_t newest = places.empty() ? -1 : tokens[places.back()],
                                   recent = firstRecent(sequence, newest);
                const bool all = head.misses == 0, newestHit = head.hits > 0;
                for (const std::int32_t i : places)
                    record.blocks.emplace_back(tokens[i], tokens[i] >= recent ? Origin::Window : origin,
                                               all || (newestHit && tokens[i] == newest));
                if (scoresAt_ > 0) {
                    const auto* scores = RowsOf(reinterpret_cast<const float*>(report + scoresAt_), capacity_)[item];
                    for (const std::int32_t i : places) record.scores.push_back(scores[i]);
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
