#include "profiler/store/denoise_writer.h"

#include "profiler/format/trace_keys.h"

#include <algorithm>
#include <bit>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvscope {

DenoiseWriter::DenoiseWriter(Connection& connection) {
    forwards_ = RowInserter(connection, "denoise", "id, block, denoise_step, kind, masked, written");
    tokens_ = RowInserter(connection, "denoise_token", "id, position, input_id, candidate, confidence, written");
    layers_ = RowInserter(connection, "denoise_layer", "id, mode, active, active_set, pages, density, changes");
    tileRows_ = RowInserter(connection, "denoise_tile", "id, densities");
    kvChanges_ = RowInserter(connection, "denoise_change", "id, key_changes, value_changes");
}

void DenoiseWriter::add(int run, int group, const StepRecord& record) {
    addForwards(run, record);
    addLayers(run, record);
    addTileRows(run, group, record);
    addKvChanges(run, record);
}

void DenoiseWriter::reset() {
    for (RowInserter* inserter : {&forwards_, &tokens_, &layers_, &tileRows_, &kvChanges_}) inserter->reset();
}

void DenoiseWriter::addForwards(int run, const StepRecord& record) {
    const DenoiseStep& step = record.denoise;
    forwards_.expect(step.forwards.size());
    for (const DenoiseForward& forward : step.forwards)
        forwards_.add(trace::tokenKey(run, record.step, forward.sequence, 0), forward.block, forward.step,
                      forward.final, forward.masked, forward.written);
    tokens_.expect(step.tokens.size());
    for (const DenoiseForward& forward : step.forwards)
        for (std::uint32_t i = 0; i < forward.tokens; ++i) {
            const DenoiseToken& token = step.tokens[forward.firstToken + i];
            std::optional<std::int64_t> candidate;
            std::optional<double> confidence;
            if (token.candidate >= 0) candidate = token.candidate, confidence = double(token.confidence);
            tokens_.add(trace::tokenKey(run, record.step, forward.sequence, int(i)), token.position, token.id,
                        candidate, confidence, token.written);
        }
}

void DenoiseWriter::addLayers(int run, const StepRecord& record) {
    const DenoiseStep& step = record.denoise;
    const std::size_t block = step.forwards.front().tokens;
    layers_.expect(step.layers.size());
    for (const DenoiseLayer& layer : step.layers) {
        std::optional<std::int64_t> active, activeSet, pages;
        std::optional<double> density;
        if (layer.sparse) {
            active = std::popcount(layer.active), activeSet = std::int64_t(layer.active);
            pages = layer.pages, density = double(layer.density);
        }
        std::optional<RowInserter::Blob> changes;
        if (layer.firstChange >= 0)
            changes = RowInserter::Blob{
                std::as_bytes(std::span(step.changes).subspan(std::size_t(layer.firstChange), block))};
        layers_.add(trace::selectionKey(run, record.step, layer.layer, layer.sequence, layer.kvHead), layer.sparse,
                    active, activeSet, pages, density, changes);
    }
}

void DenoiseWriter::addTileRows(int run, int group, const StepRecord& record) {
    const DenoiseStep& step = record.denoise;
    const auto hasRows = [](const DenoiseLayer& layer) { return layer.firstRow >= 0 && layer.rows > 0; };
    tileRows_.expect(std::size_t(std::count_if(step.layers.begin(), step.layers.end(), hasRows)));
    for (const DenoiseLayer& layer : step.layers) {
        if (!hasRows(layer)) continue;
        const auto all = std::span(step.rowDensities).subspan(std::size_t(layer.firstRow), std::size_t(layer.rows));
        const std::size_t rows = all.size() / std::size_t(group);
        std::string text = "[";
        for (std::size_t head = 0; head < std::size_t(group); ++head)
            text += fmt::format("{}[{}]", head > 0 ? "," : "", fmt::join(all.subspan(head * rows, rows), ","));
        text += "]";
        tileRows_.add(trace::selectionKey(run, record.step, layer.layer, layer.sequence, layer.kvHead),
                      std::string_view(text));
    }
}

void DenoiseWriter::addKvChanges(int run, const StepRecord& record) {
    const DenoiseStep& step = record.denoise;
    const auto hasChanges = [](const DenoiseLayer& layer) { return layer.firstKvChange >= 0; };
    kvChanges_.expect(std::size_t(std::count_if(step.layers.begin(), step.layers.end(), hasChanges)));
    const std::size_t block = step.forwards.front().tokens;
    for (const DenoiseLayer& layer : step.layers) {
        if (!hasChanges(layer)) continue;
        const auto both = std::span(step.kvChanges).subspan(std::size_t(layer.firstKvChange), 2 * block);
        kvChanges_.add(trace::selectionKey(run, record.step, layer.layer, layer.sequence, layer.kvHead),
                       RowInserter::Blob{std::as_bytes(both.first(block))},
                       RowInserter::Blob{std::as_bytes(both.subspan(block))});
    }
}

} // namespace kvscope
