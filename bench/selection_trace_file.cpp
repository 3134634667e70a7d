#include "bench/selection_trace_file.h"

#include "base/error.h"
#include "profiler/store/trace_store.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <utility>

namespace kvscope::bench {
namespace {

constexpr int kBlockBytes = 32'768, kBlockTokens = 64, kStepsPerCommit = 500;

class Random { // splitmix64
public:
    explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
    std::uint64_t operator()() {
        std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }
    int below(int limit) { return int(operator()() % std::uint64_t(limit)); }

private:
    std::uint64_t state_;
};

RunInfo infoOf(const char* name, int layers, int budget) {
    RunInfo info;
    info.name = name;
    info.model = "generated";
    info.method = "nosa";
    info.paramsJson = "{}";
    info.backend = "cpu";
    info.device = "none: generated";
    info.link = "pcie5";
    info.linkGbps = 55.5;
    info.blockSize = kBlockTokens;
    info.layers = layers;
    info.kvHeads = 1;
    info.queryHeads = 8;
    info.headDim = 128;
    info.sequences = 1;
    info.deviceSlots = info.budgetBlocks = budget;
    info.blockBytes = kBlockBytes;
    return info;
}

/// How many blocks a selection shares with the one before. The number differs by layer, drifts over the steps, and
/// falls for a moment now and then.
int keptOf(int layer, int step, int selected, Random& random) {
    const double drift = 0.12 * std::sin(step / 4000.0 + layer * 0.37) + 0.05 * std::sin(step / 97.0);
    const bool jump = (unsigned(step) * 2654435761u ^ unsigned(layer) * 40503u) % 5003 == 0;
    const double locality = jump ? 0.15 : 0.62 + 0.28 * std::sin(layer * 0.9) * 0.8 + drift;
    return std::clamp(int(locality * selected) + random.below(9) - 4, 0, selected);
}

void fillLayer(LayerRecord& row, std::int64_t& now, int selected, int kept, bool first, Random& random) {
    row.startNs = now;
    for (const Stage stage : {Stage::QkvLinear, Stage::Rope, Stage::Compression, Stage::Stage1, Stage::Pooling,
                              Stage::Offloading, Stage::Stage2, Stage::OLinear, Stage::Ffn})
        now += row.stageNs[std::size_t(stage)] = 2'000 + random.below(9'000);
    row.selected = selected;
    row.kept = first ? -1 : kept;
    row.misses = first ? selected : selected - kept;
    row.hits = selected - row.misses;
    row.h2dBlocks = row.misses;
    row.h2dBytes = std::int64_t(row.misses) * kBlockBytes;
    row.transferNs = row.h2dBytes * 10 / 555;
    row.exposedNs = row.transferNs / 3;
}

/// One head's selection: a set that changes a little from step to step.
class Mask {
public:
    Mask(int blocks, int selected) : in_(std::size_t(blocks), 0), selected_(std::min(selected, blocks)) {}
    void next(StepRecord& record, Random& random) {
        const std::vector<std::uint8_t> before = in_;
        const bool first = std::none_of(before.begin(), before.end(), [](std::uint8_t in) { return in != 0; });
        const int blocks = int(in_.size());
        in_.front() = in_.back() = 1; // sink and window
        int leaving = first ? 0 : selected_ / 8, held = int(std::count(in_.begin(), in_.end(), 1));
        for (; leaving > 0; --leaving) {
            const int block = random.below(blocks);
            if (block > 0 && block + 1 < blocks && in_[std::size_t(block)] && random.below(8) < 7)
                in_[std::size_t(block)] = 0, --held;
        }
        while (held > selected_) // as many blocks leave as have come
            if (const int block = 1 + random.below(blocks - 2); std::exchange(in_[std::size_t(block)], 0) == 1) --held;
        const int near = random.below(blocks); // some of the new blocks lie beside each other
        for (int tries = 0; held < selected_; ++tries) {
            const int block = tries < 16 ? std::min(near + tries, blocks - 1) : random.below(blocks);
            if (std::exchange(in_[std::size_t(block)], 1) == 0) ++held;
        }
        SelectionRecord row;
        row.kept = first ? -1 : 0;
        for (int block = 0; block < blocks; ++block) {
            if (!in_[std::size_t(block)]) continue;
            const bool hit = before[std::size_t(block)] != 0;
            const Origin origin = block == 0            ? Origin::Sink
                                  : block + 1 == blocks ? Origin::Window
                                  : block % 5 == 0      ? Origin::QueryAgnostic
                                                        : Origin::QueryAware;
            record.blocks.emplace_back(block, origin, hit);
            (hit ? row.hits : row.misses) += 1;
            if (!first) row.kept += hit ? 1 : 0;
        }
        row.selected = row.hits + row.misses;
        record.selections.push_back(row);
    }

private:
    std::vector<std::uint8_t> in_;
    int selected_;
};

void writeRun(TraceStore& store, const HeatTraceShape& shape, bool masks, const Log& log) {
    const int layers = masks ? 1 : shape.layers;
    store.beginRun(infoOf(masks ? "one head's mask" : "many layers", layers, shape.selected),
                   masks ? RecordLevel::Selections : RecordLevel::Counters);
    Random random(shape.seed + (masks ? 1 : 0));
    Mask mask(std::max(shape.blocks, 3), shape.selected);
    StepRecord record;
    std::int64_t now = 0;
    for (int step = 0; step < shape.steps; ++step) {
        record.clear();
        record.step = step;
        record.phase = step == 0 ? Phase::Prefill : Phase::Decode;
        record.tokens = 1;
        record.startNs = now;
        record.layers.resize(std::size_t(layers));
        if (masks && step > 0) mask.next(record, random);
        for (int layer = 0; layer < layers; ++layer) {
            const int selected = step == 0 ? 0 : masks ? record.selections[0].selected : shape.selected;
            const int kept = masks && step > 0 ? record.selections[0].kept : keptOf(layer, step, selected, random);
            record.layers[std::size_t(layer)] = {};
            fillLayer(record.layers[std::size_t(layer)], now, selected, kept, step <= 1, random);
        }
        record.durationNs = now - record.startNs;
        store.addStep(record);
        if (step % kStepsPerCommit == kStepsPerCommit - 1) store.commit();
        if (step % 20'000 == 19'999) log(fmt::format("{} steps written", step + 1));
    }
    store.endRun(RunStatus::Finished, "");
    store.commit();
}

} // namespace

std::int64_t writeHeatTrace(const std::string& path, const HeatTraceShape& shape, const Log& log) {
    {
        TraceStore store(path, true);
        writeRun(store, shape, false, log);
        if (shape.blocks > 0) writeRun(store, shape, true, log);
        store.finish();
    }
    return std::int64_t(std::filesystem::file_size(path));
}

HeatTraceShape heatTraceShape(const Settings& settings) {
    HeatTraceShape shape;
    const auto read = [&](const char* key, int least, int most, int& value) {
        const auto at = settings.find(key);
        if (at == settings.end()) return;
        const char* end = at->second.data() + at->second.size();
        const auto [stop, failure] = std::from_chars(at->second.data(), end, value);
        if (failure != std::errc() || stop != end || value < least || value > most)
            throw Error(ErrorKind::BadInput, fmt::format("cannot use --set {}={}", key, at->second),
                        fmt::format("write a whole number from {} to {}", least, most));
    };
    int seed = 1;
    read("steps", 2, 10'000'000, shape.steps);
    read("layers", 1, 1024, shape.layers);
    read("blocks", 3, 1'000'000, shape.blocks);
    read("selected", 2, 100'000, shape.selected);
    read("seed", 0, 1'000'000'000, seed);
    shape.seed = std::uint64_t(seed);
    shape.selected = std::min(shape.selected, shape.blocks);
    return shape;
}

} // namespace kvscope::bench
