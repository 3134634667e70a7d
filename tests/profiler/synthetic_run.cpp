#include "tests/profiler/synthetic_run.h"

#include "core/transfer/link.h"
#include "profiler/record/recorder.h"

#include <algorithm>
#include <set>

namespace kvscope::synthetic {
namespace {

constexpr int kBlockBytes = 8192;

Link linkOf() { return {}; }

int promptLength(const RunShape& shape, int sequence) { return shape.promptTokens + sequence; }

} // namespace

const std::vector<std::string>& words() {
    static const std::vector<std::string> list{"The",  " needle", ",",     " \"quoted\"", "\n",      " is",
                                               "\xC3", "\xA9",    " \xE6", "\x97\xA5",    " hidden", ";tab\t",
                                               " 42",  ".",       " in",   " hay"};
    return list;
}

int fedPosition(const RunShape& shape, int sequence, int step) {
    const int last = sequence == 0 ? shape.decodeSteps : shape.decodeSteps * 3 / 4;
    return step > last ? -1 : promptLength(shape, sequence) + step - 1;
}

RunInfo infoOf(const RunShape& shape) {
    RunInfo info;
    info.name = shape.method + " on synthetic";
    info.model = "synthetic";
    info.method = shape.method;
    info.paramsJson = R"({"window":)" + std::to_string(shape.window) + "}";
    info.backend = "cpu";
    info.device = "2 threads, AVX2";
    info.link = linkOf().describe();
    info.linkTiming = Timing::Modelled;
    info.linkGbps = linkOf().gigabytesPerSecond;
    info.linkLatencyUs = linkOf().latencyUs;
    info.blockSize = shape.blockSize;
    info.layers = shape.layers;
    info.kvHeads = shape.kvHeads;
    info.queryHeads = shape.kvHeads * 3;
    info.headDim = 64;
    info.sequences = shape.sequences;
    info.budgetBlocks = shape.sink + shape.window + shape.queryAware + shape.queryAgnostic;
    info.deviceSlots = info.budgetBlocks;
    info.blockBytes = kBlockBytes;
    RunPrompts::Ids ids;
    for (int sequence = 0; sequence < shape.sequences; ++sequence) {
        auto& tokens = ids.emplace_back();
        for (int position = 0; position < promptLength(shape, sequence); ++position)
            tokens.push_back((position * 7 + sequence) % int(words().size()));
    }
    info.prompts = {std::make_shared<const RunPrompts::Ids>(std::move(ids)),
                    [](std::int32_t id) { return std::string(words()[std::size_t(id)]); }};
    return info;
}

RunGenerator::RunGenerator(const RunShape& shape)
    : shape_(shape), state_(shape.seed * 0x9E3779B97F4A7C15u + 1),
      heads_(std::size_t(shape.layers * shape.sequences * shape.kvHeads)) {}

std::uint64_t RunGenerator::random() { // splitmix64
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

void RunGenerator::fillNext(StepRecord& record, RecordLevel level) {
    const bool prefill = next_ == 0;
    record.step = next_;
    record.phase = prefill ? Phase::Prefill : Phase::Decode;
    record.startNs = clockNs_;
    std::int64_t now = clockNs_;
    const auto pass = [&](std::int64_t& stage, int most) { now += stage = 1 + below(most); };
    pass(record.stepStageNs[0], 4000);
    for (int sequence = 0; sequence < shape_.sequences; ++sequence) {
        const int fed = prefill ? promptLength(shape_, sequence) - 1 : fedPosition(shape_, sequence, next_);
        if (fed < 0) continue;
        record.tokens += prefill ? promptLength(shape_, sequence) : 1;
        if (!prefill) record.opensBlock |= fed % shape_.blockSize == 0;
        const int word = below(int(words().size()));
        record.generated.push_back({sequence, word, fed + 1, words()[std::size_t(word)]});
    }
    record.layers.resize(std::size_t(shape_.layers));
    for (int layer = 0; layer < shape_.layers; ++layer) {
        LayerRecord& row = record.layers[std::size_t(layer)];
        now += below(300); // gaps belong to `other`
        row.startNs = now;
        const bool dense = prefill || layer < shape_.denseLayers;
        for (int stage = 0; stage < kStageCount; ++stage) {
            const auto kind = Stage(stage);
            const bool sparseOnly = kind == Stage::Stage1 || kind == Stage::Pooling || kind == Stage::Stage2;
            if (dense ? sparseOnly : kind == Stage::Attention) continue;
            pass(row.stageNs[std::size_t(stage)], 60000);
        }
        fillLayer(layer, record);
    }
    pass(record.stepStageNs[1], 90000);
    pass(record.stepStageNs[2], 3000);
    record.durationNs = now - record.startNs;
    clockNs_ = now + below(20000);
    ++next_;
    if (level == RecordLevel::Counters) record.blocks.clear();
    if (level != RecordLevel::Full) record.scores.clear();
}

void RunGenerator::fillLayer(int layer, StepRecord& record) {
    LayerRecord& row = record.layers[std::size_t(layer)];
    if (record.phase == Phase::Prefill) {
        for (int sequence = 0; sequence < shape_.sequences; ++sequence)
            row.d2hBlocks += promptLength(shape_, sequence) / shape_.blockSize * shape_.kvHeads;
        row.d2hBytes = std::int64_t(row.d2hBlocks) * kBlockBytes;
        row.transferNs = linkOf().transferNs(row.d2hBytes);
        return;
    }
    if (layer < shape_.denseLayers) return;
    bool keptDefined = true;
    int kept = 0;
    for (int sequence = 0; sequence < shape_.sequences; ++sequence) {
        const int position = fedPosition(shape_, sequence, record.step);
        if (position < 0) continue;
        for (int head = 0; head < shape_.kvHeads; ++head) {
            select(layer, sequence, head, position, record);
            const SelectionRecord& selection = record.selections.back();
            row.selected += selection.selected;
            row.hits += selection.hits;
            row.misses += selection.misses;
            keptDefined &= selection.kept >= 0;
            kept += std::max(selection.kept, 0);
            if ((position + 1) % shape_.blockSize == 0) ++row.d2hBlocks;
        }
    }
    row.kept = keptDefined ? kept : -1;
    row.h2dBlocks = row.misses;
    row.h2dBytes = std::int64_t(row.h2dBlocks) * kBlockBytes;
    row.d2hBytes = std::int64_t(row.d2hBlocks) * kBlockBytes;
    row.exposedNs = linkOf().transferNs(row.h2dBytes);
    row.transferNs = row.exposedNs + linkOf().transferNs(row.d2hBytes);
}

void RunGenerator::select(int layer, int sequence, int kvHead, int position, StepRecord& record) {
    Head& state = heads_[std::size_t((layer * shape_.sequences + sequence) * shape_.kvHeads + kvHead)];
    const int current = position / shape_.blockSize;
    std::vector<std::int32_t> ids;
    std::vector<Origin> origins(std::size_t(current) + 1, Origin::Sink);
    std::set<std::int32_t> taken;
    const auto take = [&](int block, Origin origin) {
        if (block < 0 || block > current || !taken.insert(block).second) return false;
        origins[std::size_t(block)] = origin;
        return true;
    };
    for (int i = 0; i < shape_.sink; ++i) take(i, Origin::Sink);
    for (int i = 0; i < shape_.window; ++i) take(current - i, Origin::Window);
    const auto pick = [&](int count, Origin origin, int stay) {
        for (int i = 0; i < count && int(taken.size()) <= current; ++i) {
            const bool old = !state.previous.empty() && below(10) < stay;
            int block = old ? state.previous[std::size_t(below(int(state.previous.size())))] : below(current + 1);
            while (!take(block, origin)) block = (block + 1) % (current + 1);
        }
    };
    pick(shape_.queryAware, Origin::QueryAware, 7);
    pick(shape_.queryAgnostic, Origin::QueryAgnostic, 9);
    ids.assign(taken.begin(), taken.end());

    SelectionRecord selection;
    selection.layer = layer;
    selection.sequence = sequence;
    selection.kvHead = kvHead;
    selection.selected = std::int32_t(ids.size());
    selection.first = std::uint32_t(record.blocks.size());
    if (state.hasPrevious)
        selection.kept = std::int32_t(std::count_if(ids.begin(), ids.end(), [&](std::int32_t id) {
            return std::binary_search(state.previous.begin(), state.previous.end(), id);
        }));
    for (const std::int32_t id : ids) {
        // Resident: selected one step earlier, or the block this very step begins or continues.
        const bool resident = id == current || std::binary_search(state.previous.begin(), state.previous.end(), id);
        record.blocks.emplace_back(id, origins[std::size_t(id)], resident);
        record.scores.push_back(float(below(1 << 20)) / float(1 << 20) - 0.25f);
        resident ? ++selection.hits : ++selection.misses;
    }
    if (shape_.oracle) {
        selection.mass = 0.5f + float(below(1 << 10)) / float(1 << 11);
        selection.bestMass = (1 + selection.mass) / 2;
        selection.recall = selection.mass * selection.mass;
        if (selection.kvHead != 1 || selection.layer != 2) { // there all that is near was enough
            selection.farMass = selection.mass / 2;
            selection.farBestMass = selection.mass;
            selection.farRecall = selection.recall / 2;
        }
    }
    state.previous = ids;
    state.hasPrevious = true;
    record.selections.push_back(selection);
}

void RunGenerator::recordNext(TraceSink& sink, int count) {
    for (int i = 0; i < count; ++i) {
        auto step = sink.acquire();
        fillNext(*step, sink.level());
        sink.take(std::move(step));
    }
}

void record(TraceSink& sink, const RunShape& shape, RunStatus status) {
    sink.beginRun(infoOf(shape));
    RunGenerator generator(shape);
    generator.recordNext(sink, generator.steps());
    sink.endRun(status, "");
}

std::vector<StepRecord> stepsOf(const RunShape& shape, RecordLevel level) {
    CollectingSink sink(level);
    record(sink, shape);
    return std::move(sink.steps);
}

void recordFile(const std::filesystem::path& path, const RunShape& shape, RecordLevel level) {
    RecorderOptions options;
    options.level = level;
    Recorder recorder(path.string(), options);
    record(recorder, shape);
}

} // namespace kvscope::synthetic
