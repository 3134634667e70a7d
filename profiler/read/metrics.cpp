#include "profiler/read/trace_reader.h"

#include <limits>

namespace kvscope {

const std::vector<MetricInfo>& metrics() {
    constexpr double open = std::numeric_limits<double>::quiet_NaN();
    static const std::vector<MetricInfo> all{
        {Metric::Locality, "locality", "Locality", "",
         "Share of the selected blocks that the same KV head had also selected one step earlier: |S(t) and S(t-1)| / "
         "|S(t)|. "
         "Undefined for the first decode step of a sequence and for dense layers.",
         0, 1},
        {Metric::HitRate, "hit_rate", "Hit rate", "",
         "Share of the selected blocks that were in the device tier when they were selected: hits / (hits + misses).",
         0, 1},
        {Metric::Misses, "misses", "Misses", "blocks",
         "Selected blocks that were not in the device tier and had to be loaded.", 0, open},
        {Metric::H2dBytes, "h2d_bytes", "Host to device", "B",
         "Bytes loaded from the host store into the device tier. They are recorded for whole layers; for one sequence "
         "or KV head they are its misses times the block size, and undefined where the layer loaded something else: "
         "blocks ahead of the step that misses them, or values only.",
         0, open},
        {Metric::ExposedTime, "exposed", "Exposed transfer time", "µs",
         "Transfer time on the critical path of the layer, measured or modelled as the run says. Recorded for a whole "
         "layer "
         "only, so undefined for one sequence or KV head.",
         0, open},
        {Metric::LayerTime, "layer_time", "Layer time", "µs",
         "Wall time of all stages of the layer. Undefined for one sequence or KV head.", 0, open},
        {Metric::Mass, "mass", "Attention mass", "",
         "Share of the full softmax that falls on the selected blocks, averaged over the query heads of the group; "
         "only "
         "recorded with the oracle.",
         0, 1},
        {Metric::Recall, "recall", "Recall", "",
         "Share of the best blocks that were selected; best are those of the most attention mass, as many as were "
         "selected. "
         "Only recorded with the oracle.",
         0, 1},
        {Metric::FarMass, "far_mass", "Far attention mass", "",
         "Share of the attention beyond sink and window that falls on the selected blocks. Every method attends sink "
         "and "
         "window, so this is what the choice itself is worth. Only recorded with the oracle.",
         0, 1}};
    return all;
}

Known neededBy(Metric metric) {
    switch (metric) {
    case Metric::HitRate:
    case Metric::Misses:
        return Known::Hits;
    case Metric::H2dBytes:
        return Known::Bytes;
    case Metric::ExposedTime:
        return Known::ExposedTimes;
    case Metric::LayerTime:
        return Known::StageTimes;
    case Metric::Locality:
    case Metric::Mass:
    case Metric::Recall:
    case Metric::FarMass:
        break;
    }
    return Known::Selections;
}

} // namespace kvscope
