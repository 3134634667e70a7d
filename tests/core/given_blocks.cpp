#include "tests/core/given_blocks.h"

#include "core/select/method.h"
#include "core/select/selector.h"
#include "core/session/engine.h"

#include <algorithm>

namespace kvscope::test {
namespace {

class GivenSelector final : public Selector {
public:
    explicit GivenSelector(const StepRecord* const& step) : step_(step) {}
    void choose(std::span<HeadStep> heads) override {
        for (HeadStep& item : heads) {
            if (item.dense) continue;
            item.selected.clear();
            item.wanted.clear();
            const auto chosen =
                std::find_if(step_->selections.begin(), step_->selections.end(), [&](const SelectionRecord& s) {
                    return LayerId{s.layer} == item.layer && KvHeadId{s.kvHead} == item.kvHead &&
                           RowId{s.sequence} == item.sequence;
                });
            if (chosen == step_->selections.end()) continue;
            for (const PackedBlock block : step_->blocksOf(*chosen)) {
                item.selected.push_back({block.id(), block.origin()});
                item.wanted.push_back(block.id());
            }
        }
    }

private:
    const StepRecord* const& step_;
};

} // namespace

std::vector<std::vector<float>> logitsWithBlocksOf(std::span<const StepRecord> steps,
                                                   const std::shared_ptr<const Model>& model, const std::string& method,
                                                   const std::vector<std::int32_t>& prompt,
                                                   std::span<const std::int32_t> tokens) {
    const ModelConfig& config = model->config();
    const MethodEntry& entry = findMethod(method);
    const std::vector<std::vector<std::int32_t>> prompts{prompt};
    const SessionOptions options;
    const int last = int(prompt.size() + steps.size()), everyBlock = last / 16 + 1;
    const SelectionSpec spec = entry.make(resolveDefaults(entry, config), config);
    EngineSetup setup{model,
                      prompts,
                      options,
                      spec,
                      {last},
                      everyBlock,
                      LayerPlans(config, spec, {.remembers = true}),
                      "keep-selected",
                      RecordLevel::Full,
                      {},
                      {},
                      {},
                      {}};
    const StepRecord* current = nullptr;
    setup.makeSelector = [&current](const SelectorContext&) { return std::make_unique<GivenSelector>(current); };
    const auto engine = makeCpuEngine(setup);
    StepRecord record;
    engine->prefill(record, {}, {});
    std::vector<std::vector<float>> logits;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        current = &steps[i];
        record = {};
        record.step = int(i) + 1;
        const ActiveSequence active{RowId{0}, int(prompt.size() + i)};
        engine->decode({&active, 1}, {&tokens[i], 1}, record);
        logits.emplace_back(engine->logits(0), engine->logits(0) + config.vocab);
    }
    return logits;
}

} // namespace kvscope::test
