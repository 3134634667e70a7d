#include "bench/generated_trace.h"

#include "core/trace/trace_sink.h"
#include "profiler/store/trace_store.h"

#include <array>
#include <filesystem>
#include <fmt/format.h>

namespace kvscope::bench {
namespace {

constexpr std::array<std::string_view, 5> kKernelNames{"normalise", "fewInputs<1>", "selectKernel<128, 2>",
                                                       "gatherKernel", "decodeKernel<128, 8>"};

class Generator {
public:
    explicit Generator(const GeneratedTrace& shape) : shape_(shape), state_(shape.seed * 2 + 1) {}

    /// Fills the next step and its spans. @return how many spans the timeline will show for them
    std::int64_t next(StepRecord& record, std::vector<SpanRecord>& spans) {
        record.clear();
        spans.clear();
        const bool prefill = number_ == 0;
        record.step = number_++;
        record.phase = prefill ? Phase::Prefill : Phase::Decode;
        record.tokens = prefill ? 4096 * shape_.sequences : shape_.sequences;
        record.startNs = clock_;
        record.stepStageNs = {4'000, 60'000, 5'000};
        clock_ += record.stepStageNs[0];
        std::int64_t shown = 4; // the step, and its stages outside the layers
        record.layers.resize(std::size_t(shape_.layers));
        for (int layer = 0; layer < shape_.layers; ++layer)
            shown += fillLayer(record.step, layer, prefill ? 40 : 1, record.layers[std::size_t(layer)], spans);
        clock_ += record.stepStageNs[1] + record.stepStageNs[2];
        record.durationNs = clock_ - record.startNs;
        clock_ += below(40'000); // time that passes on the host between two steps
        return shown + std::int64_t(spans.size());
    }

private:
    std::uint64_t random() {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        return state_ ^= state_ << 17;
    }
    std::int64_t below(std::int64_t limit) { return std::int64_t(random() % std::uint64_t(limit)); }

    std::int64_t fillLayer(int step, int layer, int factor, LayerRecord& record, std::vector<SpanRecord>& spans) {
        static constexpr std::array<int, kStageCount> typical{17, 4, 2, 8, 4, 40, 13, 0, 15, 117}; // microseconds
        std::int64_t shown = 1;
        record.startNs = clock_;
        for (std::size_t stage = 0; stage < kStageCount; ++stage) {
            if (typical[stage] == 0) continue;
            record.stageNs[stage] = (typical[stage] * 800 + below(typical[stage] * 400)) * factor;
            clock_ += record.stageNs[stage];
            ++shown;
        }
        record.selected = shape_.kvHeads * shape_.sequences * 64;
        // Most steps miss little; now and then one misses much, as when the topic changes.
        record.misses = int(below(random() % 50 == 0 ? record.selected : record.selected / 12));
        record.hits = record.selected - record.misses;
        record.kept = record.hits;
        record.h2dBlocks = record.misses;
        record.h2dBytes = std::int64_t(record.misses) * 32768;
        record.transferNs = std::min(record.h2dBytes / 50, record.stageNs[std::size_t(Stage::Offloading)]);
        record.exposedNs = record.transferNs / 2;
        if (record.h2dBytes > 0) ++shown;
        addKernels(step, layer, record, spans);
        return shown;
    }

    void addKernels(int step, int layer, const LayerRecord& record, std::vector<SpanRecord>& spans) {
        const std::int64_t length = (clock_ - record.startNs) / shape_.kernelsPerLayer;
        for (int kernel = 0; kernel < shape_.kernelsPerLayer; ++kernel) {
            const std::size_t stage = std::size_t(kernel) * kStageCount / std::size_t(shape_.kernelsPerLayer);
            SpanRecord span;
            span.step = step;
            span.layer = layer;
            span.kind = SpanRecord::Kind::Kernel;
            span.track = kernel % 4 == 3 ? "stream 8" : "stream 7";
            span.name =
                fmt::format("{}: {}", kStageNames[stage], kKernelNames[std::size_t(kernel) % kKernelNames.size()]);
            span.startNs = record.startNs + kernel * length;
            span.durationNs = length / 2 + below(length / 2);
            spans.push_back(std::move(span));
        }
        SpanRecord copy;
        copy.step = step;
        copy.kind = SpanRecord::Kind::Copy;
        copy.track = "copies device to host";
        copy.name = "4096 bytes device to host";
        copy.startNs = clock_ - 2'000;
        copy.durationNs = 1'500;
        if (layer == shape_.layers - 1) spans.push_back(std::move(copy));
    }

    GeneratedTrace shape_;
    std::uint64_t state_;
    std::int64_t clock_ = 1'000'000;
    int number_ = 0;
};

} // namespace

GeneratedSize writeGeneratedTrace(const std::string& path, const GeneratedTrace& shape, const Log& log) {
    RunInfo info;
    info.name = fmt::format("generated, {} spans", shape.spans);
    info.model = "none";
    info.method = "nosa";
    info.paramsJson = "{}";
    info.backend = "cuda";
    info.device = "none: generated";
    info.link = "generated";
    info.linkTiming = Timing::Measured;
    info.blockSize = 64;
    info.layers = shape.layers;
    info.kvHeads = shape.kvHeads;
    info.queryHeads = shape.kvHeads * 4;
    info.headDim = 128;
    info.sequences = shape.sequences;
    info.deviceSlots = info.budgetBlocks = 64;
    info.blockBytes = 32768;
    GeneratedSize size;
    TraceStore store(path, true);
    store.beginRun(info, RecordLevel::Counters);
    Generator generator(shape);
    StepRecord record;
    std::vector<SpanRecord> spans;
    for (std::int64_t said = 0; size.spans < shape.spans; ++size.steps) {
        size.spans += generator.next(record, spans);
        store.addStep(record);
        store.addSpans(spans);
        if (size.steps % 64 == 63) store.commit();
        if (size.spans - said >= 2'000'000) {
            log(fmt::format("{} million spans written", (said = size.spans) / 1'000'000));
        }
    }
    store.endRun(RunStatus::Finished, "");
    store.commit();
    store.finish();
    size.bytes = std::int64_t(std::filesystem::file_size(path));
    return size;
}

} // namespace kvscope::bench
