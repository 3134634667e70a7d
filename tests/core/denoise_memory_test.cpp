// What sessions that denoise declare of their memory on the CPU backend, beside what they take: counted from outside,
// by the heap of the whole program.
#include "core/diffusion/block_run.h"
#include "core/engine/cpu/cpu_memory.h"
#include "core/select/method.h"
#include "core/session/canvas_engine.h"
#include "core/session/denoise_engine.h"
#include "tests/core/counting_allocator.h"
#include "tests/core/diffusion_model.h"
#include "tests/core/small_session.h"
#include "tests/support/places.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <numeric>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::randomSdar;
using test::somePrompt;

constexpr int kMask = 60, kSteps = 4;

struct Case {
    std::string method;
    test::Settings settings = {};
    bool recorded = false;
    int slots = 0; // pages of a KV head on the device; 0: nothing travels
};

void PrintTo(const Case& tested, std::ostream* out) {
    *out << tested.method << ", " << tested.settings.size() << " settings" << (tested.recorded ? ", recorded" : "");
}

std::string nameOf(const ::testing::TestParamInfo<Case>& tested) {
    std::string name = tested.param.method;
    for (const auto& [key, value] : tested.param.settings) name += std::string("_") + key + "_" + value;
    if (tested.param.recorded) name += "_recorded";
    if (tested.param.slots > 0) name += "_slots";
    std::replace_if(
        name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
    return name;
}

/// What a session declared and took.
struct Measured {
    std::int64_t declared = 0, taken = 0;
    std::string parts;
};

/// run: makes an engine, and lets it do its forwards. undeclared: bytes that something takes beside.
Measured measure(const MemoryPlan& plan, std::int64_t undeclared, const std::function<void()>& run) {
    Measured measured{plan.most(), 0, {}};
    for (const MemoryPlan::Part& part : plan.parts())
        measured.parts += std::string(part.need.key) + " " + std::to_string(part.bytes / 1024) + " KiB\n";
    test::forgetMost();
    const std::int64_t before = test::bytesHeld();
    const std::vector<char> beside(static_cast<std::size_t>(undeclared));
    run();
    measured.taken = test::mostBytesHeld() - before;
    return measured;
}

void expectDeclared(const Measured& m) {
    EXPECT_NEAR(double(m.taken), double(m.declared), 0.05 * double(m.taken))
        << "taken " << m.taken / 1024 << " KiB, declared " << m.declared / 1024 << " KiB:\n"
        << m.parts;
}

void expectNoticed(const Measured& m) {
    EXPECT_GT(double(m.taken - m.declared), 0.05 * double(m.taken)) << "a megabyte goes unnoticed";
}

/// Records have room for a run before memory is counted: what is recorded is not the engine's.
StepRecord roomyRecord(int layers) {
    StepRecord record;
    record.layers.resize(std::size_t(layers));
    record.denoise.layers.reserve(1000);
    record.selections.reserve(1000);
    record.blocks.reserve(100'000);
    record.denoise.changes.reserve(100'000);
    record.denoise.rowDensities.reserve(100'000);
    return record;
}

// ---- Blocks ---------------------------------------------------------------------------------------------------------

std::shared_ptr<const Model> blockModel() {
    static const auto loaded = [] {
        auto config = test::sdarConfig(16);
        config["hidden_size"] = 128;
        config["intermediate_size"] = 256;
        config["num_hidden_layers"] = 4;
        return randomSdar(config);
    }();
    return loaded;
}

Measured measureBlocks(const Case& tested, std::int64_t undeclared = 0) {
    const auto model = blockModel();
    const MethodEntry& method = findMethod(tested.method);
    const ModelConfig& config = model->config();
    ParameterValues values = resolveDefaults(method, config);
    for (const auto& [key, value] : tested.settings) values.set(parametersFor(method, config), key, value);
    const std::vector<std::vector<std::int32_t>> prompts{somePrompt(1000), somePrompt(500)};
    const DenoiseOptions options = select::denoiseOptions(values);
    DenoiseSetup setup{model, prompts, options, method.make(values, config), {}, 1};
    for (const auto& prompt : prompts)
        setup.maxTokens.push_back(BlockRun::reach(int(prompt.size()), 32, options.block));
    setup.level = tested.recorded ? RecordLevel::Full : RecordLevel::Counters;
    setup.slots = tested.slots;
    const std::vector<std::int32_t> masks(std::size_t(options.block), config.diffusion->maskId);
    StepRecord record = roomyRecord(config.layers);
    return measure(cpuDenoiserMemory(setup), undeclared, [&] {
        const auto engine = makeCpuDenoiser(setup);
        engine->prefill(record, {}, {});
        for (int block = 0; block < 2; ++block)
            for (int step = 0; step <= kSteps; ++step) {
                std::vector<DenoiseRow> rows;
                for (const RowId sequence : idsUpTo<RowId>(int(prompts.size()))) {
                    const int whole = int(prompts[index(sequence)].size()) / options.block;
                    rows.push_back({sequence, (whole + block) * options.block, block, step, step == kSteps, masks,
                                    step == kSteps ? 0u : ~std::uint64_t(0) >> (64 - options.block)});
                }
                record.clear();
                engine->forward(rows, record);
            }
    });
}

class DenoisedBlocksMemory : public ::testing::TestWithParam<Case> {
protected:
    void SetUp() override {
        if (!test::countsAllocations()) GTEST_SKIP() << "the sanitizer has an allocator of its own";
        (void)measureBlocks({"full"}); // what is made once a program is not a session's
    }
};

TEST_P(DenoisedBlocksMemory, IsDeclaredAsItIsTaken) { expectDeclared(measureBlocks(GetParam())); }

TEST_P(DenoisedBlocksMemory, AMegabyteThatNobodyDeclaredShows) { expectNoticed(measureBlocks(GetParam(), 1 << 20)); }

std::vector<Case> blockCases() {
    std::vector<Case> all;
    for (const MethodEntry& method : methods())
        if (!method.denoisingParameters.empty())
            for (const bool recorded : {false, true}) all.push_back({method.name, {}, recorded});
    all.push_back({"losa", {{"active_set", "kv_head"}}});
    all.push_back({"losa", {}, false, 12});
    all.push_back({"quest", {{"page", "16"}}, true, 30});
    return all;
}

INSTANTIATE_TEST_SUITE_P(Methods, DenoisedBlocksMemory, ::testing::ValuesIn(blockCases()), nameOf);

// ---- A canvas -------------------------------------------------------------------------------------------------------

std::shared_ptr<const Model> canvasModel() {
    static const auto loaded = [] {
        auto config = nlohmann::json::parse(std::ifstream(test::source("tests/golden/denoise/llada/config.json")));
        config["d_model"] = 128;
        config["mlp_hidden_size"] = 256;
        config["n_layers"] = 4;
        return randomSdar(config);
    }();
    return loaded;
}

/// Which keys the forwards of a run attend to, in the order in which a session asks for them.
std::vector<CanvasRow::Keys> keysOf(const CanvasOptions& options) {
    using enum CanvasRow::Keys;
    if (options.cache == CanvasCache::Evicted) return {All, AllAndChoose, Kept, Kept};
    if (options.cache == CanvasCache::Features) return {Computed, Computed, Computed};
    if (options.tiles()) return {All, AllAndChoose, Masked, Masked};
    return {All, All};
}

Measured measureCanvas(const Case& tested, std::int64_t undeclared = 0) {
    constexpr int kCanvas = 64;
    const auto model = canvasModel();
    const MethodEntry& method = findMethod(tested.method);
    const ModelConfig& config = model->config();
    ParameterValues values = resolveDefaults(method, config);
    for (const auto& [key, value] : tested.settings) values.set(parametersFor(method, config), key, value);
    CanvasSetup setup;
    setup.model = model;
    setup.options = select::canvasOptions(values, kCanvas);
    setup.promptTokens = {400, 250};
    for (const int tokens : setup.promptTokens) setup.maxTokens.push_back(tokens + kCanvas);
    setup.mostWanted = setup.promptTokens.size() * std::size_t(setup.options.block);
    setup.threads = 1;
    setup.level = tested.recorded ? RecordLevel::Full : RecordLevel::Counters;
    const std::vector<std::int32_t> ids(std::size_t(setup.maxTokens.front()), kMask);
    StepRecord record = roomyRecord(config.layers);
    return measure(cpuCanvasMemory(setup), undeclared, [&] {
        const auto engine = makeCpuCanvas(setup);
        bool first = true;
        for (const CanvasRow::Keys keys : keysOf(setup.options)) {
            std::vector<CanvasRow> rows;
            for (const RowId sequence : idsUpTo<RowId>(int(setup.maxTokens.size()))) {
                CanvasRow row;
                const int prompt = setup.promptTokens[index(sequence)];
                row.sequence = sequence, row.keys = keys, row.block = prompt;
                row.ids = std::span(ids).first(std::size_t(setup.maxTokens[index(sequence)]));
                if (keys == CanvasRow::Keys::Kept)
                    row.first = prompt, row.ids = row.ids.first(std::size_t(setup.options.block));
                row.wholePrompt = row.wholeCanvas = first;
                row.wanted.resize(std::size_t(setup.options.block));
                std::iota(row.wanted.begin(), row.wanted.end(), prompt);
                rows.push_back(std::move(row));
            }
            first = false;
            record.clear();
            engine->forward(rows, record);
        }
    });
}

class DenoisedCanvasMemory : public ::testing::TestWithParam<Case> {
protected:
    void SetUp() override {
        if (!test::countsAllocations()) GTEST_SKIP() << "the sanitizer has an allocator of its own";
        (void)measureCanvas({"full"});
    }
};

TEST_P(DenoisedCanvasMemory, IsDeclaredAsItIsTaken) { expectDeclared(measureCanvas(GetParam())); }

TEST_P(DenoisedCanvasMemory, AMegabyteThatNobodyDeclaredShows) { expectNoticed(measureCanvas(GetParam(), 1 << 20)); }

std::vector<Case> canvasCases() {
    std::vector<Case> all;
    for (const MethodEntry& method : methods())
        if (!method.canvasParameters.empty())
            for (const bool recorded : {false, true}) all.push_back({method.name, {}, recorded});
    all.push_back({"full", {{"cache", "dllm"}}});
    return all;
}

INSTANTIATE_TEST_SUITE_P(Methods, DenoisedCanvasMemory, ::testing::ValuesIn(canvasCases()), nameOf);

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
