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
                    return s.layer == item.layer && s.kvHead == item.kvHead && s.sequence == item.sequence;
                });
            for (int i = 0; chosen != step_->selections.end() && i < chosen->selected; ++i) {
                const std::size_t at = chosen->first + std::size_t(i);
                item.selected.push_back({step_->blocks[at], step_->origins[at]});
                item.wanted.push_back(step_->blocks[at]);
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
        const ActiveSequence active{0, int(prompt.size() + i)};
        engine->decode({&active, 1}, {&tokens[i], 1}, record);
        logits.emplace_back(engine->logits(0), engine->logits(0) + config.vocab);
    }
    return logits;
}

} // namespace kvscope::test
