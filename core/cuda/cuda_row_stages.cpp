#include "core/cuda/cuda_row_stages.h"

#include "core/cuda/device_copy.h"

#include <algorithm>

namespace kvscope {

using enum StepReport::Mark;
using enum StepReport::StepMark;

void CudaRowStages::begin(std::span<CudaRow* const> rows) {
    rows_ = rows;
    beside_ = !rows.front()->sequences.selector && p_.pool == nullptr; // a pool is asked for all rows at once
    p_.products.rows = int(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
        CudaRow& row = *rows[i];
        row.takePlace(int(i));
        row.launch.stream = beside_ ? row.own.get() : launch_.stream;
        row.sequences.stages.begin(row.report(), row.logits);
    }
}

/// How the first kernel behind copies on a stream is launched: it begins when the copies are done.
cuda::Launch CudaRowStages::afterCopies() const {
    cuda::Launch how = launch_;
    how.joined = true;
    return how;
}

void CudaRowStages::embed() {
    const int layers = p_.model->config.layers;
    for (CudaRow* row : rows_)
        clearOnStream(row->sequences.transfers.counters, {layers, 2}, launch_.stream, "clearing a row's counters");
    p_.ranges.at(StepStage::Embed);
    p_.passes.embed(ids_, int(rows_.size()), p_.shared.x, nullptr, 0, report().mark(kEmbed));
    for (CudaRow* row : rows_) // the report of each row counts the blocks that arrive late
        if (row != rows_.front() && row->sequences.order.looksAhead())
            cuda::stampNow(launch_, row->report().mark(kEmbed));
}

void CudaRowStages::project(LayerId layer) {
    p_.ranges.at(layer, Stage::QkvLinear);
    p_.passes.project(p_.model->layers[layer], p_.shared.x, int(rows_.size()), report().mark(layer, kQkv));
    p_.ranges.at(layer, Stage::Rope);
    const cuda::Launch shared = launch_;
    if (beside_) cuda::check(cudaEventRecord(forked_.get(), shared.stream), "beginning a row's attention");
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        CudaRow& row = *rows_[i];
        if (beside_) {
            cuda::check(cudaStreamWaitEvent(row.launch.stream, forked_.get()), "beginning a row's attention");
            launch_.stream = row.launch.stream;
            launch_.joined = true;
        }
        row.sequences.stages.takeProducts(layer, int(i));
        launch_ = shared;
    }
}

void CudaRowStages::append(LayerId layer) {
    for (CudaRow* row : rows_) row->sequences.stages.append(layer);
}
void CudaRowStages::choose(LayerId layer) {
    for (CudaRow* row : rows_) row->sequences.stages.choose(layer);
    const CudaRow& first = *rows_.front();
    const DeviceLayerState& state = first.sequences.layers[layer];
    if (!first.options().pooled || !state.offloaded) return;
    int capacity = 0;
    for (const CudaRow* row : rows_) capacity = std::max(capacity, row->layout().capacity);
    p_.pool->lookUp(launch_, layer, capacity, first.sequences.choice.valuesByToken(layer));
    for (CudaRow* row : rows_) row->sequences.stages.fetch(layer);
}
void CudaRowStages::lookAhead(LayerId layer) {
    for (CudaRow* row : rows_) row->sequences.stages.lookAhead(layer);
}

/// A selector that attends by itself leaves what it has chosen in memory of its own, so rows may load one after another
/// before the first of them attends.
void CudaRowStages::load(LayerId layer) {
    for (CudaRow* row : rows_) row->sequences.stages.load(layer);
}
void CudaRowStages::attend(LayerId layer) {
    for (CudaRow* row : rows_) row->sequences.stages.attend(layer);
}

void CudaRowStages::after(LayerId layer) {
    for (CudaRow* row : rows_) row->sequences.stages.after(layer);
    if (!beside_) return;
    for (CudaRow* row : rows_) {
        cuda::check(cudaEventRecord(row->attended.get(), row->launch.stream), "ending a row's attention");
        cuda::check(cudaStreamWaitEvent(launch_.stream, row->attended.get()), "ending a row's attention");
    }
    // The next kernel on this stream may start early; it waits for this one, which does not.
    cuda::stampNow(afterCopies(), report().mark(layer, kOLinear));
}

void CudaRowStages::finish(LayerId layer) {
    p_.passes.finish(layer, p_.shared.x, int(rows_.size()), beside_ ? nullptr : report().mark(layer, kOLinear),
                     report().mark(layer, kFfn));
}

void CudaRowStages::head() {
    p_.ranges.at(StepStage::LmHead);
    float* const logits = p_.shared.logits[0];
    p_.passes.head(logits, report().mark(kLmHead));
    const RowsOf ofRow(logits, p_.model->config.vocab);
    int place = 0;
    for (CudaRow* const row : rows_)
        copyOnStream(row->logits, ofRow[place++], ofRow.width(), cudaMemcpyDeviceToDevice, launch_.stream,
                     "keeping a row's logits");
}

void CudaRowStages::sample() {
    p_.ranges.at(StepStage::Sample);
    cuda::Launch how = afterCopies();
    for (CudaRow* row : rows_) {
        row->launchSample(how);
        how.joined = false;
    }
    for (CudaRow* row : rows_) {
        row->launch.stream = launch_.stream;
        row->sequences.transfers.joinAll(row->sequences.storeBytes > 0);
    }
    p_.ranges.leave();
}

} // namespace kvscope
