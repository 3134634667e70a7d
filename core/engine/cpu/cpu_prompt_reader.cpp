#include "core/engine/cpu/cpu_prompt_reader.h"

#include <algorithm>

namespace kvscope {

CpuPromptReader::CpuPromptReader(CpuLayerPasses& passes, CpuPromptAttention& attention, const Model& model,
                                 const RopeTables& rope, const std::vector<std::vector<std::int32_t>>& prompts,
                                 StageClock& clock)
    : passes_(passes), attention_(attention), config_(model.config()), rope_(rope), prompts_(prompts), clock_(clock),
      readings_(prompts.size()) {
    for (const auto& prompt : prompts) tokens_ += std::int64_t(prompt.size()) * config_.layers;
}

int CpuPromptReader::piecesOf(RowId row) const {
    return (int(prompts_[index(row)].size()) + kPromptPieceTokens - 1) / kPromptPieceTokens;
}

void CpuPromptReader::begin(RowId row, PromptReading& reading, StepRecord& record) {
    clock_.skip(); // the time since the last piece belongs to no stage
    if (reading.at != PromptCursor{} || reading.x.size() > 0) return;
    const auto& prompt = prompts_[index(row)];
    clock_.run(record, StepStage::Embed, [&] {
        reading.x = AlignedBuffer<float>(streamOf(row).size());
        passes_.embed(prompt, reading.x.data());
    });
}

void CpuPromptReader::finish(RowId row, PromptReading& reading, float* lastToken) {
    const Extents<int, int> stream = streamOf(row);
    std::copy_n(reading.x.data() + stream.first(stream.length(0) - 1), stream.under(0), lastToken);
    reading.x = {};
}

bool CpuPromptReader::read(RowId row, PromptCursor until, float* lastToken, StepRecord& record,
                           const Progress& progress, const std::stop_token& stop) {
    PromptReading& reading = readings_[index(row)];
    const PromptCursor end{LayerId{config_.layers}, 0};
    if (reading.at == end) return true;
    begin(row, reading, record);
    while (reading.at < std::min(until, end)) {
        throwIfCancelled(stop);
        report(progress, double(done_) / double(tokens_), "reading the prompt");
        readPiece(row, reading, reading.at, record.layers[index(reading.at.layer)]);
        if (++reading.at.piece == piecesOf(row)) reading.at = {next(reading.at.layer), 0};
    }
    if (reading.at < end) return false;
    finish(row, reading, lastToken);
    return true;
}

bool CpuPromptReader::readChunk(RowId row, int until, float* lastToken, StepRecord& record, const Progress& progress,
                                const std::stop_token& stop) {
    PromptReading& reading = readings_[index(row)];
    const PromptCursor end{LayerId{config_.layers}, 0};
    if (reading.at == end) return true;
    begin(row, reading, record);
    while (reading.at.piece < std::min(until, piecesOf(row))) {
        throwIfCancelled(stop);
        report(progress, double(done_) / double(tokens_), "reading the prompt");
        readPiece(row, reading, reading.at, record.layers[index(reading.at.layer)]);
        reading.at.layer = next(reading.at.layer);
        if (reading.at.layer == end.layer) reading.at = {LayerId{0}, reading.at.piece + 1};
    }
    if (reading.at.piece < piecesOf(row)) return false;
    reading.at = end;
    finish(row, reading, lastToken);
    return true;
}

/// Reads one piece of a prompt in one layer.
void CpuPromptReader::readPiece(RowId row, PromptReading& reading, PromptCursor at, LayerRecord& layer) {
    const int length = int(prompts_[index(row)].size()), first = at.piece * kPromptPieceTokens;
    const int n = std::min(kPromptPieceTokens, length - first);
    float* x = reading.x.data() + streamOf(row).first(first);
    for (int i = 0; i < n; ++i) passes_.rotateAs(i, rope_, rope_.first(int(row)) + first + i);
    if (layer.startNs == 0) clock_.beginLayer(layer);
    passes_.project(at.layer, x, n, layer);
    attention_.read({at.layer, row, first, n, length, passes_.rows()}, layer);
    passes_.finish(at.layer, x, n, layer);
    done_ += n;
    if (first + n == length) attention_.finish(at.layer, row, length, layer);
}

} // namespace kvscope
