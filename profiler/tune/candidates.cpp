#include "profiler/tune/candidates.h"

#include "base/error.h"
#include "core/plan/kv_format.h"
#include "core/plan/layer_plan.h"
#include "core/select/refusal.h"
#include "core/session/engine_setup.h"
#include "core/session/kv_estimate.h"
#include "core/session/model_summary.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>

namespace kvscope {
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

/// The parameters by which methods say how much a KV head attends to. The first that a method has is its budget.
constexpr std::array kBudgetKeys{"total_blocks",  "page_budget",     "k_t",       "heavy_tokens",
                                 "budget_tokens", "capacity_tokens", "max_num_kv"};
/// Parts of a budget in blocks, which keep their proportion to it.
constexpr std::array kBudgetParts{"window_blocks", "select_blocks"};

const Parameter* find(const MethodEntry& method, std::string_view key) {
    const auto& all = method.parameters;
    const auto found = std::find_if(all.begin(), all.end(), [&](const Parameter& p) { return p.key == key; });
    return found == all.end() ? nullptr : &*found;
}

/// How a method's budget is set.
class BudgetKnob {
public:
    BudgetKnob(const MethodEntry& method, const ModelConfig& config)
        : method_(method), own_(resolveDefaults(method, config)) {
        for (const char* key : kBudgetKeys)
            if (budget_ == nullptr) budget_ = find(method, key);
        if (own_.has("block_size")) block_ = own_.integer("block_size");
        if (budget_ != nullptr) return;
        budget_ = find(method, "window_blocks"); // sink and window are all it attends to
        if (budget_ == nullptr) return;
        if (own_.has("sink_blocks")) besides_ += own_.integer("sink_blocks");
        if (own_.has("window_adds_current") && own_.boolean("window_adds_current")) ++besides_;
    }

    int ownBlock() const { return block_; }
    /// Tokens; 0: the method has no budget of its own, or one that depends on the prompt.
    int ownTokens() const {
        if (budget_ == nullptr) return 0;
        const int value = own_.integer(budget_->key);
        return inBlocks() ? (value + besides_) * block_ : value;
    }
    bool exists() const { return budget_ != nullptr; }

    /// The settings for this budget (0: the method's own) and block size (0: the method's own).
    Settings settings(int tokens, int blockSize) const {
        Settings out;
        const int block = blockSize > 0 ? blockSize : block_;
        if (block != block_) out.emplace_back("block_size", std::to_string(block));
        if (budget_ == nullptr) return out;
        const int wanted = tokens > 0 ? tokens : ownTokens();
        if (wanted <= 0 || (wanted == ownTokens() && block == block_)) return out;
        if (!inBlocks()) {
            if (const Parameter* recent = find(method_, "recent_tokens")) { // H2O halves its budget
                out.emplace_back(budget_->key, std::to_string(std::max(1, wanted / 2)));
                out.emplace_back(recent->key, std::to_string(std::max(1, wanted - wanted / 2)));
            } else {
                out.emplace_back(budget_->key, std::to_string(wanted));
            }
            return out;
        }
        const auto blocks = [&](double ofTokens) { return std::max(1, int(std::lround(ofTokens / block))); };
        out.emplace_back(budget_->key, std::to_string(std::max(1, blocks(wanted) - besides_)));
        const double share = double(wanted) / ownTokens();
        for (const char* part : kBudgetParts)
            if (part != budget_->key && find(method_, part) != nullptr && own_.integer(part) > 0)
                out.emplace_back(part, std::to_string(blocks(own_.integer(part) * block_ * share)));
        return out;
    }

private:
    bool inBlocks() const { return budget_->unit == "blocks"; }
    const MethodEntry& method_;
    ParameterValues own_;
    const Parameter* budget_ = nullptr;
    int block_ = 0;   // tokens
    int besides_ = 0; // blocks of the budget that its parameter does not count
};

/// The device memory of a session, and the slots of its common tier.
struct DeviceNeed {
    std::int64_t bytes = 0;
    int neededSlots = 0; // 0: no block slots
};

DeviceNeed needOf(const Model& model, const MethodEntry& method, const TuneCandidate& candidate, const TuneLoad& load,
                  bool offload, std::optional<std::int64_t> slots) {
    const MethodUse use{candidate.values, candidate.spec, model.config(), load.backend, offload, &model};
    const KvEstimate kv = estimateKv(model, method, use, {load.promptTokens, load.newTokens}, load.batch, slots);
    const std::int64_t shared = load.backend == Backend::Cpu ? kv.sharedBytes : 0;
    return {kv.deviceBytes + kv.indexBytes + shared, kv.neededSlots};
}

std::string mebibytes(std::int64_t bytes) { return fmt::format("{:.1f} MiB", double(bytes) / 1048576); }

/// Chooses where the blocks are: all on the device where they fit, else as many slots as do. @return why the candidate
/// does not fit; empty: it does
std::string place(const Model& model, const MethodEntry& method, TuneCandidate& candidate, const TuneLoad& load) {
    const auto fits = [&](std::int64_t bytes) { return load.deviceBytes == 0 || bytes <= load.deviceBytes; };
    const bool forgets = !method.blocksTravel && !candidate.spec.dense; // what it drops is nowhere
    const DeviceNeed whole = needOf(model, method, candidate, load, forgets, {});
    candidate.offload = forgets;
    candidate.deviceBytes = whole.bytes;
    if (fits(whole.bytes)) return {};
    if (!method.blocksTravel)
        return fmt::format("takes {} of the device, and nothing of it can leave", mebibytes(whole.bytes));
    candidate.offload = candidate.travels = true;
    const DeviceNeed least = needOf(model, method, candidate, load, true, {});
    candidate.deviceBytes = least.bytes;
    if (!fits(least.bytes)) return fmt::format("takes at least {} of the device", mebibytes(least.bytes));
    if (least.neededSlots == 0 || candidate.spec.ownDeviceTier) return {};
    int low = least.neededSlots, high = candidate.spec.grid.blocks(load.promptTokens + load.newTokens);
    while (low < high) { // the most slots that fit
        const int middle = low + (high - low + 1) / 2;
        if (fits(needOf(model, method, candidate, load, true, middle).bytes))
            low = middle;
        else
            high = middle - 1;
    }
    candidate.deviceSlots = low;
    candidate.deviceBytes = needOf(model, method, candidate, load, true, low).bytes;
    return {};
}

/// @return why the combination cannot be tried; empty: it can
std::string make(const Model& model, const MethodEntry& method, const TuneLoad& load, TuneCandidate& candidate) {
    const ModelConfig& config = model.config();
    const int longest = load.promptTokens + load.newTokens;
    candidate.values = resolveDefaults(method, config);
    for (const auto& [key, value] : candidate.settings) candidate.values.set(method.parameters, key, value);
    candidate.spec = methodSpec(method, candidate.values, model);
    const SelectionSpec& spec = candidate.spec;
    candidate.blockSize = spec.blockSize;
    candidate.budgetTokens = spec.dense ? 0 : spec.budgetBlocks() * spec.blockSize;
    const MethodUse use{candidate.values, spec, config, load.backend, true, &model};
    if (const auto refusal = findRefusal(method, use, longest, &model)) return refusal->what();
    if (!spec.dense && candidate.budgetTokens >= load.promptTokens)
        return fmt::format("its budget of {} tokens covers the whole prompt", candidate.budgetTokens);
    candidate.looksAhead = abilitiesOf(method, use).looksAhead();
    candidate.blockBytes = kvFormat(load.backend, config, spec).blockBytes();
    return place(model, method, candidate, load);
}

std::vector<std::string> methodsOf(const Model& model, const TuneGrid& grid, std::vector<LeftOut>& leftOut) {
    if (!grid.methods.empty() && grid.methods != std::vector<std::string>{"all"}) return grid.methods;
    std::vector<std::string> names;
    for (const MethodFit& fit : summarize(model).methods)
        if (fit.applies)
            names.push_back(fit.name);
        else if (findMethod(fit.name).decodesTokens)
            leftOut.push_back({fit.name, fit.remark});
    return names;
}

} // namespace

std::string TuneCandidate::name() const {
    std::string text = method;
    for (const auto& [key, value] : settings) text += fmt::format(" {}={}", key, value);
    return text;
}

std::vector<TuneCandidate> candidatesOf(const Model& model, const TuneGrid& grid, const TuneLoad& load,
                                        std::vector<LeftOut>& leftOut) {
    std::vector<TuneCandidate> candidates;
    const auto add = [&](const MethodEntry& method, const Settings& settings) {
        TuneCandidate candidate;
        candidate.method = method.name;
        candidate.settings = settings;
        const std::string name = candidate.name();
        const auto sameName = [&](const auto& other) { return other == name; };
        const auto nameOfCandidate = [](const TuneCandidate& c) { return c.name(); };
        if (std::ranges::any_of(candidates, sameName, nameOfCandidate) ||
            std::ranges::any_of(leftOut, sameName, &LeftOut::name))
            return;
        std::string reason;
        try {
            reason = make(model, method, load, candidate);
        } catch (const Error& error) { // the method refuses the combination
            reason = error.what();
        }
        if (reason.empty())
            candidates.push_back(std::move(candidate));
        else
            leftOut.push_back({name, reason});
    };
    for (const std::string& name : methodsOf(model, grid, leftOut)) {
        const MethodEntry& method = findMethod(name);
        if (load.backend == Backend::Cuda && !method.runsOnCuda()) {
            leftOut.push_back({name, "does not run on a GPU"});
            continue;
        }
        const BudgetKnob knob(method, model.config());
        std::vector<int> budgets = grid.budgets, blocks = grid.blockSizes;
        if (!knob.exists()) budgets = {0};
        if (budgets.empty()) {
            const int own = knob.ownTokens();
            budgets = own > 0 ? std::vector{own / 2, own, 2 * own} : std::vector{0};
        }
        if (blocks.empty() || knob.ownBlock() == 0) blocks = {0};
        for (const int block : blocks)
            for (const int budget : budgets) add(method, knob.settings(budget, block));
    }
    if (candidates.empty())
        throw Error(ErrorKind::BadInput,
                    leftOut.empty() ? "there is nothing to choose from"
                                    : fmt::format("none of {} combinations can be tried; {}: {}", leftOut.size(),
                                                  leftOut.front().name, leftOut.front().reason),
                    "give more memory, smaller --budgets, or other --methods");
    return candidates;
}

} // namespace kvscope
