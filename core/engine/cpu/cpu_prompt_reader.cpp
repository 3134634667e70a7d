#include "core/engine/cpu/cpu_prompt_reader.h"

#include <algorithm>

namespace kvscope {

CpuPromptReader::CpuPromptReader(CpuLayerPasses& passes, CpuPromptAttention& attention, const Model& model,
                                 const RopeTables& rope, const std::vector<std::vector<std::int32_t>>& prompts,
                                 StageClock& clock)
    : passes_(passes), attention_(attention), config_(model.config()), rope_(rope), prompts_(prompts), clock_(clock),
      lanes_(prompts.size()) {
    for (const auto& prompt : prompts) tokens_ += std::int64_t(prompt.size()) * config_.layers;
}

bool CpuPromptReader::read(int row, PromptCursor until, float* lastToken, StepRecord& record, const Progress& progress,
                           const std::stop_token& stop) {
    const auto& prompt = prompts_[std::size_t(row)];
    const std::size_t hidden = std::size_t(config_.hidden);
    Lane& lane = lanes_[std::size_t(row)];
    const PromptCursor end{config_.layers, 0};
    if (lane.at == end) return true;
    clock_.skip(); // the time since the last piece counts for no stage
    if (lane.at == PromptCursor{} && lane.x.size() == 0)
        clock_.run(record, StepStage::Embed, [&] {
            lane.x = AlignedBuffer<float>(prompt.size() * hidden);
            passes_.embed(prompt, lane.x.data());
        });
    while (lane.at < std::min(until, end)) {
        throwIfCancelled(stop);
        report(progress, double(done_) / double(tokens_), "reading the prompt");
        readPiece(row, lane, record.layers[std::size_t(lane.at.layer)]);
    }
    if (lane.at < end) return false;
    std::copy_n(lane.x.data() + (prompt.size() - 1) * hidden, hidden, lastToken);
    lane.x = {};
    return true;
}

/// Reads the piece at the cursor of the lane and moves the cursor to the next piece.
void CpuPromptReader::readPiece(int row, Lane& lane, LayerRecord& layer) {
    const int length = int(prompts_[std::size_t(row)].size()), first = lane.at.piece * kPromptPieceTokens;
    const int n = std::min(kPromptPieceTokens, length - first);
    float* x = lane.x.data() + std::size_t(first) * std::size_t(config_.hidden);
    const auto ropeRows = passes_.ropeRows(std::size_t(n));
    for (int i = 0; i < n; ++i) ropeRows[std::size_t(i)] = rope_.first(row) + first + i;
    if (layer.startNs == 0) clock_.beginLayer(layer);
    passes_.project(lane.at.layer, x, n, layer);
    attention_.read({lane.at.layer, row, first, n, length, passes_.rows()}, layer);
    passes_.finish(lane.at.layer, x, n, layer);
    done_ += n;
    ++lane.at.piece;
    if (first + n < length) return;
    attention_.finish(lane.at.layer, row, length, layer);
    lane.at = {lane.at.layer + 1, 0};
}

} // namespace kvscope
