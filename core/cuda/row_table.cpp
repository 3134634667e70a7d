#include "core/cuda/row_table.h"

#include "base/extents.h"
#include "core/session/sampler.h"
#include "kernels/cuda/device/check.h"

#include <algorithm>

namespace kvscope {
namespace {

template <class T> void copy(T* to, const T* from, std::size_t count) {
    cuda::check(cudaMemcpy(to, from, count * sizeof(T), cudaMemcpyHostToDevice), "preparing the session");
}

template <class T> void copy(T* to, const std::vector<T>& from) { copy(to, from.data(), from.size()); }

/// Rows of `length` numbers as rows of `wide` ones, with `rest` behind them.
std::vector<float> widened(const float* from, int rows, int length, int wide, float rest) {
    const Extents<int, int> at(rows, wide);
    std::vector<float> to(at.size(), rest);
    for (int row = 0; row < rows; ++row)
        std::copy_n(RowsOf(from, length)[row], length, at.part(std::span(to), row).begin());
    return to;
}

} // namespace

RowTable::RowTable(const ModelConfig& config, const CudaEngineOptions& options, const BatchLayout& layout)
    : rope(RopeTables::layout(config.rope, options.maxTokens)), config_(config), options_(options), layout_(layout),
      nextHost_(layout.rows, 0), activeHost_(layout.rows, 1) {
    if (options.sampling.temperature > 0)
        for (std::size_t s = 0; s < options.maxTokens.size(); ++s)
            drawsPerRow = std::max(drawsPerRow, options.maxTokens[s] - options.promptTokens[s]);
}

void RowTable::plan(DeviceArena& arena) {
    constexpr const char* kWhat = "session state";
    const int rows = layout_.rows;
    arena.plan(position, rows, kWhat);
    arena.plan(ropeFirst, rows, kWhat);
    const Elements angles(rope.rows(), tableAngles(config_));
    arena.plan(ropeCos, angles, "rotary tables");
    arena.plan(ropeSin, angles, "rotary tables");
    arena.plan(next, rows, kWhat);
    arena.plan(active, rows, kWhat);
    if (options_.sampling.temperature > 0) {
        arena.plan(draws, {rows, drawsPerRow}, kWhat);
        arena.plan(firstSampled, rows, kWhat);
    }
    for (std::int64_t** first : {&blockFirst, &windowFirst, &tokenFirst, &poolFirst})
        arena.plan(*first, layout_.heads(), kWhat);
}

void RowTable::upload() {
    const RopeTables tables(config_.rope, options_.promptTokens.empty() ? options_.maxTokens : options_.promptTokens,
                            options_.maxTokens);
    const int rotated = config_.rope.dim / 2, wide = tableAngles(config_);
    copy(ropeCos, widened(tables.cos(), rope.rows(), rotated, wide, 1.f));
    copy(ropeSin, widened(tables.sin(), rope.rows(), rotated, wide, 0.f));
    std::vector<std::int32_t> first;
    for (int s = 0; s < layout_.rows; ++s) first.push_back(rope.first(s));
    copy(ropeFirst, first);
    if (draws != nullptr) uploadDraws();
    copy(blockFirst, layout_.blockFirst);
    copy(windowFirst, layout_.windowFirst);
    copy(tokenFirst, layout_.tokenFirst);
    std::vector<std::int64_t> pool(layout_.heads());
    for (std::size_t i = 0; i < pool.size(); ++i) pool[i] = std::int64_t(i) * options_.slots;
    copy(poolFirst, pool);
}

/// Uploads all random numbers that the session's samplers would draw, so that a step needs nothing from the host.
void RowTable::uploadDraws() {
    std::vector<double> numbers;
    std::vector<std::int32_t> first;
    for (const RowId s : idsUpTo<RowId>(layout_.rows)) {
        Sampler sampler(options_.sampling, int(s));
        for (int i = 0; i < drawsPerRow; ++i) numbers.push_back(sampler.draw());
        first.push_back(options_.promptTokens[s] - 1);
    }
    copy(draws, numbers);
    copy(firstSampled, first);
}

void RowTable::setInputs(std::span<const std::int32_t> tokens, std::span<const std::uint8_t> rows,
                         cudaStream_t stream) {
    if (!std::equal(tokens.begin(), tokens.end(), nextHost_.begin(), nextHost_.end())) {
        nextHost_.assign(tokens.begin(), tokens.end());
        cuda::check(cudaMemcpyAsync(next, nextHost_.data(), nextHost_.size() * sizeof(std::int32_t),
                                    cudaMemcpyHostToDevice, stream),
                    "copying the tokens");
    }
    if (!std::equal(rows.begin(), rows.end(), activeHost_.begin(), activeHost_.end())) {
        activeHost_.assign(rows.begin(), rows.end());
        cuda::check(cudaMemcpyAsync(active, activeHost_.data(), activeHost_.size(), cudaMemcpyHostToDevice, stream),
                    "copying the active sequences");
    }
}

void RowTable::advance(const std::int32_t* tokens) {
    for (std::size_t row = 0; row < nextHost_.size(); ++row)
        if (activeHost_[row]) nextHost_[row] = tokens[row];
}

void RowTable::begin(const std::int32_t* tokens) { std::copy_n(tokens, nextHost_.size(), nextHost_.begin()); }

void RowTable::setAll(bool all) {
    cuda::check(cudaMemset(active, all ? 1 : 0, activeHost_.size()), "preparing a step");
    cuda::check(cudaStreamSynchronize(cudaStreamLegacy), "preparing a step");
}

cuda::NextTokenArgs RowTable::nextTokens(const float* logits, std::int32_t* record) const {
    cuda::NextTokenArgs args;
    args.logits = logits;
    args.rows = layout_.rows;
    args.vocab = config_.vocab;
    args.next = next;
    args.position = position;
    args.active = active;
    args.record = record;
    args.sampling = {options_.sampling.temperature,
                     options_.sampling.topP,
                     options_.sampling.topK,
                     draws,
                     firstSampled,
                     drawsPerRow};
    return args;
}

} // namespace kvscope
