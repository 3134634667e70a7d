#include "core/cuda/step_report.h"

#include "base/elements.h"
#include "kernels/cuda/device/check.h"

#include <type_traits>

namespace kvscope {

StepReport::StepReport(const ReportNeeds& needs, char* base, std::size_t& bytes)
    : heads_(needs.heads()), capacity_(needs.capacity), units_(needs.units), ownBytes_(needs.ownBytes),
      layers_(needs.layers), recorded_(needs.recorded) {
    bytes = 0;
    const auto take = [&](auto*& pointer, Elements count) {
        pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + bytes);
        bytes += (count * sizeof(*pointer) + 63) / 64 * 64;
    };
    const Elements layers(needs.layers);
    take(tokens, needs.rows);
    take(marks, {needs.halves, layers, int{kMarks}});
    take(stepMarks, int{kStepMarks});
    take(heads, layers * heads_);
    take(counts, {needs.halves, layers, 2});
    if (needs.blocks) take(blocks, layers * heads_ * capacity_);
    if (needs.scores) take(scores, layers * heads_ * capacity_);
    if (units_ > 0) take(masses, layers * heads_ * units_);
    if (ownBytes_ > 0) take(own, layers * ownBytes_);
}

StepReport StepReport::half(int which, int firstHead) const {
    StepReport out = *this;
    out.marks = RowsOf(marks, {layers_, int{kMarks}})[which];
    out.counts = RowsOf(counts, {layers_, 2})[which];
    out.heads += firstHead;
    if (blocks != nullptr) out.blocks = RowsOf(blocks, capacity_)[firstHead];
    if (scores != nullptr) out.scores = RowsOf(scores, capacity_)[firstHead];
    if (masses != nullptr) out.masses = RowsOf(masses, units_)[firstHead];
    return out;
}

void StepReports::plan(DeviceArena& arena, const ReportNeeds& needs) {
    needs_ = needs;
    StepReport(needs_, nullptr, bytes_);
    arena.plan(region_, bytes_ * kEntries, "recorder's buffer");
    arena.planHost(hostRegion_, bytes_ * kEntries, "the recorder's buffer");
}

void StepReports::open() {
    layOut(needs_);
    for (cuda::Event& event : reported_) event = cuda::Event::make();
}

void StepReports::layOut(const ReportNeeds& needs) {
    needs_ = needs;
    StepReport(needs_, nullptr, bytes_);
    for (int i = 0; i < kEntries; ++i) {
        std::size_t bytes = 0;
        device_[i] = StepReport(needs_, RowsOf(region_, bytes_)[i], bytes);
        host_[i] = StepReport(needs_, RowsOf(hostRegion_, bytes_)[i], bytes);
    }
}

void StepReports::copyOut(int entry, cudaStream_t copy) const {
    const std::size_t tokens = Elements(needs_.rows) * sizeof(std::int32_t);
    cuda::check(cudaMemcpyAsync(host_[entry].tokens, device_[entry].tokens, needs_.recorded ? bytes_ : tokens,
                                cudaMemcpyDeviceToHost, copy),
                "copying a step's report");
    cuda::check(cudaEventRecord(reported_[entry].get(), copy), "starting a step");
}

void StepReports::wait(int entry) const { cuda::check(cudaEventSynchronize(reported_[entry].get()), "decoding"); }

void StepReports::copyTokens(int entry) const {
    cuda::check(cudaMemcpy(host_[entry].tokens, device_[entry].tokens, Elements(needs_.rows) * sizeof(std::int32_t),
                           cudaMemcpyDeviceToHost),
                "reading the first tokens");
}

} // namespace kvscope
