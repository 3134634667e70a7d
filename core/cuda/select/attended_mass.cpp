#include "core/cuda/select/attended_mass.h"

#include "kernels/cuda/methods/candidates.h"

namespace kvscope {

std::size_t AttendedMass::bytes() const {
    return context_.oracle ? (Elements(context_.heads()) * sizeof(float) + 15) / 16 * 16 : 0;
}

void AttendedMass::plan(DeviceArena& arena) {
    if (context_.oracle) arena.plan(logSums_, {context_.rows(), context_.shape.queryHeads}, "the oracle");
}

void AttendedMass::measure(const DeviceStep& step, char* at) const {
    if (logSums_ == nullptr || step.report == nullptr) return;
    const int unit = context_.spec.unitTokens(), perBlock = context_.shape.blockSize / unit;
    cuda::AttendedShareArgs args;
    args.shape = context_.shape;
    args.shape.blockSize = unit; // the oracle has a sum for each unit
    args.rows = context_.rows();
    args.maxBlocks = context_.maxBlocks * perBlock;
    args.window = context_.config.windowOf(int(step.layer));
    args.position = step.position;
    args.active = step.active;
    args.attended = logSums_;
    args.blocks = step.blockLogSums;
    args.share = reinterpret_cast<float*>(at);
    cuda::attendedShare(context_.launch, args);
}

void AttendedMass::fill(const char* at, StepRecord& record, std::size_t firstSelection) const {
    if (!context_.oracle || at == nullptr) return;
    const auto* shares = reinterpret_cast<const float*>(at);
    for (std::size_t i = firstSelection; i < record.selections.size(); ++i) {
        SelectionRecord& selection = record.selections[i];
        selection.mass = shares[selection.sequence * context_.shape.kvHeads + selection.kvHead];
    }
}

} // namespace kvscope
