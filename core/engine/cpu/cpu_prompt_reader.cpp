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

int CpuPromptReader::piecesOf(RowId row) const {
    return (int(prompts_[index(row)].size()) + kPromptPieceTokens - 1) / kPromptPieceTokens;
}

void CpuPromptReader::begin(RowId row, Lane& lane, StepRecord& record) {
    clock_.skip(); // the time since the last piece belongs to no stage
    if (lane.at != PromptCursor{} || lane.x.size() > 0) return;
    const auto& prompt = prompts_[index(row)];
    clock_.run(record, StepStage::Embed, [&] {
        lane.x = AlignedBuffer<float>(streamOf(row).size());
        passes_.embed(prompt, lane.x.data());
    });
}

void CpuPromptReader::finish(RowId row, Lane& lane, float* lastToken) {
    const Extents<int, int> stream = streamOf(row);
    std::copy_n(lane.x.data() + stream.first(stream.length(0) - 1), stream.under(0), lastToken);
    lane.x = {};
}

bool CpuPromptReader::read(RowId row, PromptCursor until, float* lastToken, StepRecord& record,
                           const Progress& progress, const std::stop_token& stop) {
    Lane& lane = lanes_[index(row)];
    const PromptCursor end{LayerId{config_.layers}, 0};
    if (lane.at == end) return true;
    begin(row, lane, record);
    while (lane.at < std::min(until, end)) {
        throwIfCancelled(stop);
        report(progress, double(done_) / double(tokens_), "reading the prompt");
        readPiece(row, lane, lane.at, record.layers[index(lane.at.layer)]);
        if (++lane.at.piece == piecesOf(row)) lane.at = {next(lane.at.layer), 0};
    }
    if (lane.at < end) return false;
    finish(row, lane, lastToken);
    return true;
}

bool CpuPromptReader::readChunk(RowId row, int until, float* lastToken, StepRecord& record, const Progress& progress,
                                const std::stop_token& stop) {
    Lane& lane = lanes_[index(row)];
    const PromptCursor end{LayerId{config_.layers}, 0};
    if (lane.at == end) return true;
    begin(row, lane, record);
    while (lane.at.piece < std::min(until, piecesOf(row))) {
        throwIfCancelled(stop);
        report(progress, double(done_) / double(tokens_), "reading the prompt");
        readPiece(row, lane, lane.at, record.layers[index(lane.at.layer)]);
        lane.at.layer = next(lane.at.layer);
        if (lane.at.layer == end.layer) lane.at = {LayerId{0}, lane.at.piece + 1};
    }
    if (lane.at.piece < piecesOf(row)) return false;
    lane.at = end;
    finish(row, lane, lastToken);
    return true;
}

/// Reads one piece of the lane in one layer.
void CpuPromptReader::readPiece(RowId row, Lane& lane, PromptCursor at, LayerRecord& layer) {
    const int length = int(prompts_[index(row)].size()), first = at.piece * kPromptPieceTokens;
    const int n = std::min(kPromptPieceTokens, length - first);
    float* x = lane.x.data() + streamOf(row).first(first);
    for (int i = 0; i < n; ++i) passes_.rotateAs(i, rope_, rope_.first(int(row)) + first + i);
    if (layer.startNs == 0) clock_.beginLayer(layer);
    passes_.project(at.layer, x, n, layer);
    attention_.read({at.layer, row, first, n, length, passes_.rows()}, layer);
    passes_.finish(at.layer, x, n, layer);
    done_ += n;
    if (first + n == length) attention_.finish(at.layer, row, length, layer);
}

} // namespace kvscope
