#include "profiler/tiles/denoise_steps.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace kvscope {

DenoiseTile::DenoiseTile(ForwardRows rows, int firstStep, int steps, int stride)
    : rows_(std::move(rows)), rowOf_(steps, -1) {
    for (std::size_t i = 0; i < rows_.rows.size(); ++i) {
        const int at = (rows_.rows[i].step - firstStep) / stride;
        if (at >= 0 && at < steps && rows_.rows[i].cells > 0) rowOf_[at] = std::int32_t(i);
    }
}

Forward DenoiseTile::forward(int step) const {
    const std::int32_t row = rowOf_[step];
    if (row < 0) return {};
    const ForwardRow& found = rows_.rows[row];
    return {&found, rows_.cellsOf(found)};
}

void DenoiseTile::append(const DenoiseTile& more) {
    const auto rows = std::int32_t(rows_.rows.size());
    const auto cells = std::uint32_t(rows_.cells.size());
    for (ForwardRow row : more.rows_.rows) {
        row.firstCell += cells;
        rows_.rows.push_back(row);
    }
    rows_.cells.insert(rows_.cells.end(), more.rows_.cells.begin(), more.rows_.cells.end());
    for (const std::int32_t row : more.rowOf_) rowOf_.push_back(row < 0 ? -1 : row + rows);
}

std::shared_ptr<DenoiseTile> readTile(const TraceReader& reader, const DenoiseRequest& request, int first, int last) {
    return std::make_shared<DenoiseTile>(readForwards(reader, request, first, last), first, last - first + 1);
}

std::shared_ptr<DenoiseTile> readPreview(const TraceReader& reader, const DenoiseRequest& request, int steps,
                                         int stride) {
    ForwardRows all;
    for (int step = 0; step < steps; step += stride) {
        ForwardRows one = readForwards(reader, request, step, step);
        for (ForwardRow& row : one.rows) {
            row.firstCell += std::uint32_t(all.cells.size());
            all.rows.push_back(row);
        }
        all.cells.insert(all.cells.end(), one.cells.begin(), one.cells.end());
    }
    return std::make_shared<DenoiseTile>(std::move(all), 0, (steps + stride - 1) / stride, stride);
}

void DenoiseSteps::place(int first, std::shared_ptr<DenoiseTile> tile, int times) {
    note(tile->rows());
    tiles_.place(first, std::move(tile), times);
    ++revision_;
}

void DenoiseSteps::setPreview(std::shared_ptr<const DenoiseTile> preview, int stride) {
    note(preview->rows());
    tiles_.setPreview(std::move(preview), stride);
    ++revision_;
}

void DenoiseSteps::note(const ForwardRows& rows) {
    for (const ForwardRow& row : rows.rows) {
        if (row.cells == 0) continue;
        const auto cells = rows.cellsOf(row);
        const Block found{row.firstPosition, row.lastPosition, row.step, row.step};
        const auto [entry, fresh] = blocks_.try_emplace(row.block, found);
        Block& block = entry->second;
        block.firstPosition = std::min(block.firstPosition, found.firstPosition);
        block.lastPosition = std::max(block.lastPosition, found.lastPosition);
        block.firstStep = std::min(block.firstStep, row.step);
        block.lastStep = std::max(block.lastStep, row.step);
        const std::int64_t length = std::int64_t(row.lastPosition) - row.firstPosition + 1;
        longest_ = int(std::clamp<std::int64_t>(length, longest_, std::numeric_limits<int>::max()));
        const bool none = highest_ < lowest_;
        lowest_ = none ? block.firstPosition : std::min(lowest_, block.firstPosition);
        highest_ = none ? block.lastPosition : std::max(highest_, block.lastPosition);
        hasSparse_ = hasSparse_ || row.sparseLayers > 0;
        hasDense_ = hasDense_ || row.sparseLayers == 0;
        hasTileRows_ = hasTileRows_ || !std::isnan(row.meanRow);
        for (const ForwardCell& cell : cells) {
            Fact& fact = facts_.try_emplace(cell.position, Fact{cell.input, -1, true, row.block}).first->second;
            if (cell.written)
                fact = {cell.candidate, row.step, false, row.block};
            else if (!cell.masked())
                fact.id = cell.input, fact.masked = false;
            hasChanges_ = hasChanges_ || !std::isnan(cell.change);
            hasReuse_ = hasReuse_ || cell.active < 1;
        }
    }
}

Forward DenoiseSteps::at(int step) const {
    if (tiles_.knows(step)) return tiles_.tileOf(step).forward(step % kTileSteps);
    Forward found;
    tiles_.forEachPart(step, step + 1, [&](const DenoiseTile& tile, int first, int) { found = tile.forward(first); });
    return found;
}

int DenoiseSteps::next(int step, int last) const {
    while (step < last) {
        const bool known = tiles_.knows(step);
        if (known ? !tiles_.tileOf(step).rows().rows.empty() : bool(at(step))) return step;
        const bool alone = !known && tiles_.hasPreview() && tiles_.stride() < kTileSteps;
        step = alone ? step + 1 : (step / kTileSteps + 1) * kTileSteps;
    }
    return last;
}

Forward DenoiseSteps::before(int step) const {
    for (int at = std::min(step, steps()) - 1; at >= 0; --at) {
        if (const Forward found = this->at(at)) return found;
        if (tiles_.knows(at) && tiles_.tileOf(at).rows().rows.empty()) at = at / kTileSteps * kTileSteps;
    }
    return {};
}

std::optional<DenoiseSteps::Fact> DenoiseSteps::fact(int position) const {
    const auto found = facts_.find(position);
    return found == facts_.end() ? std::nullopt : std::optional(found->second);
}

float DenoiseSteps::changeQuantile(double share) const {
    constexpr std::size_t most = 200'000;
    std::vector<float> values;
    std::size_t all = 0;
    tiles_.forEachTile([&](const DenoiseTile& tile) { all += tile.rows().cells.size(); });
    const std::size_t every = std::max<std::size_t>(1, all / most);
    std::size_t at = 0;
    tiles_.forEachTile([&](const DenoiseTile& tile) {
        for (const ForwardCell& cell : tile.rows().cells)
            if (at++ % every == 0 && !std::isnan(cell.change)) values.push_back(cell.change);
    });
    if (values.empty()) return 0;
    const auto place = values.begin() + std::ptrdiff_t(double(values.size() - 1) * std::clamp(share, 0.0, 1.0));
    std::nth_element(values.begin(), place, values.end());
    return *place;
}

} // namespace kvscope
