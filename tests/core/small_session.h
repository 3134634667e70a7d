// The setup of an engine without a session around it, with budgets that prompts of some hundred tokens do not fit: for
// tests of what an engine takes.
#pragma once

#include "core/plan/memory_plan.h"
#include "core/select/method.h"
#include "core/session/engine.h"
#include "core/session/kv_estimate.h"
#include "tests/support/random_prompt.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::test {

using Settings = std::vector<std::pair<const char*, const char*>>;

/// Budgets that a prompt of some hundred tokens does not fit.
inline ParameterValues smallBudget(const MethodEntry& method, const ModelConfig& config, const Settings& more) {
    ParameterValues values = resolveDefaults(method, config);
    for (const auto& [key, value] : Settings{{"total_blocks", "6"},
                                             {"window_blocks", "2"},
                                             {"select_blocks", "2"},
                                             {"heavy_tokens", "100"},
                                             {"recent_tokens", "60"},
                                             {"k_b", "4"},
                                             {"k_t", "100"},
                                             {"capacity_tokens", "200"},
                                             {"page_budget", "6"},
                                             {"local_tokens", "128"},
                                             {"topk_blocks", "2"},
                                             {"cached_blocks", "3"},
                                             {"budget_tokens", "160"},
                                             {"outlier_tokens", "32"},
                                             {"stabilizers", "60"},
                                             {"prefill_chunk", "200"},
                                             {"local_len", "40"},
                                             {"max_num_kv", "60"}})
        if (values.has(key)) values.set(method.parameters, key, value);
    for (const auto& [key, value] : more) values.set(method.parameters, key, value);
    return values;
}

/// How a small session is not the usual one.
struct SmallSessionChoices {
    Settings settings = {}; // parameters of the method
    Backend backend = Backend::Cpu;
    bool offload = true, oracle = false;
    RecordLevel level = RecordLevel::Counters;
    std::vector<int> promptTokens = {300, 150};
    int newTokens = 24;
    std::string cachePolicy = "lru";
    std::optional<KvType> kvType = {};
};

class SmallSession {
public:
    SmallSession(const std::shared_ptr<const Model>& model, const MethodEntry& method,
                 const SmallSessionChoices& choices)
        : method_(method), values_(smallBudget(method, model->config(), choices.settings)),
          spec_(specOf(*model, method, values_)), use_{values_,         spec_,       model->config(), choices.backend,
                                                       choices.offload, model.get(), choices.kvType},
          prompts_(promptsOf(choices, model->config().vocab)),
          options_(optionsOf(method, choices)), setup{model,
                                                      prompts_,
                                                      options_,
                                                      spec_,
                                                      {},
                                                      0,
                                                      {},
                                                      choices.cachePolicy,
                                                      choices.level,
                                                      {},
                                                      values_,
                                                      abilitiesOf(method, use_),
                                                      {}} {
        for (const auto& prompt : prompts_) setup.maxTokens.push_back(int(prompt.size()) + choices.newTokens);
        const int longest = *std::max_element(setup.maxTokens.begin(), setup.maxTokens.end());
        setup.plans = LayerPlans(model->config(), spec_,
                                 {choices.offload, method.hasSelector(values_), setup.abilities.ahead, longest});
        const int blocks = spec_.grid.blocks(longest),
                  wanted = std::max({spec_.budgetBlocks() + spec_.spareSlots, spec_.deviceSlots,
                                     spec_.grid.blocks(spec_.denseBelowTokens)});
        if (setup.plans.offloaded() > 0) setup.slots = std::min(wanted, blocks);
        if (method.memory != nullptr)
            setup.methodMemory = [this](ContextLength length) { return method_.memory(use_, length); };
        setup.makeSelector = [this](const SelectorContext& context) {
            auto selector = method_.makeSelector ? method_.makeSelector(values_, context) : nullptr;
            return selector ? std::move(selector) : makeSpecSelector(context);
        };
    }
    SmallSession(const SmallSession&) = delete;
    SmallSession& operator=(const SmallSession&) = delete;

    /// The memory that every build declares: the common tiers, and what the method's entry says.
    MemoryPlan declared() const {
        MemoryPlan plan(setup.model->config(), setup.plans);
        const TierUse tiers{use_.backend, setup.model->config(),          spec_,
                            setup.slots,  setup.model->hasEvictionHead(), options_.oracle && !spec_.dense,
                            use_.kvType};
        for (std::size_t s = 0; s < prompts_.size(); ++s) {
            const int prompt = int(prompts_[s].size());
            plan.add(tierNeeds(tiers, setup.maxTokens[s]));
            if (setup.methodMemory) plan.add(setup.methodMemory({prompt, setup.maxTokens[s] - prompt}));
        }
        return plan;
    }
    const MethodUse& use() const { return use_; }

private:
    static SelectionSpec specOf(const Model& model, const MethodEntry& method, const ParameterValues& values) {
        SelectionSpec spec = method.make(values, model.config());
        if (!model.hasEvictionHead()) spec.bias.scale = 0.f;
        return spec;
    }
    static std::vector<std::vector<std::int32_t>> promptsOf(const SmallSessionChoices& choices, int vocab) {
        std::vector<std::vector<std::int32_t>> prompts;
        for (const int tokens : choices.promptTokens)
            prompts.push_back(randomPrompt(tokens, unsigned(prompts.size() + 1)));
        for (auto& prompt : prompts)
            for (std::int32_t& token : prompt) token %= vocab; // smaller than that of the embedded model, or as large
        return prompts;
    }
    static SessionOptions optionsOf(const MethodEntry& method, const SmallSessionChoices& choices) {
        SessionOptions options;
        options.threads = 1;
        options.method = method.name;
        options.backend = choices.backend;
        options.offload = choices.offload;
        options.oracle = choices.oracle;
        options.maxNewTokens = choices.newTokens;
        options.kvType = choices.kvType;
        return options;
    }

    const MethodEntry& method_;
    const ParameterValues values_;
    const SelectionSpec spec_;
    const MethodUse use_;
    const std::vector<std::vector<std::int32_t>> prompts_;
    const SessionOptions options_;

public:
    EngineSetup setup;
};

/// "key bytes" of every key of which the plans say different things, a line each; empty: they agree.
inline std::string differences(const MemoryPlan& one, const char* oneName, const MemoryPlan& other,
                               const char* otherName) {
    std::string text;
    const auto compare = [&](const MemoryPlan::Part& part) {
        const std::string key = part.need.key;
        if (one.bytes(key) == other.bytes(key) || text.find(key + ":") != text.npos) return;
        text += key + ": " + oneName + " " + std::to_string(one.bytes(key)) + ", " + otherName + " " +
                std::to_string(other.bytes(key)) + " bytes\n";
    };
    for (const MemoryPlan::Part& part : one.parts()) compare(part);
    for (const MemoryPlan::Part& part : other.parts()) compare(part);
    return text;
}

} // namespace kvscope::test
