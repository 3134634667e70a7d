// Double Sparsity (Yang et al., 2024): tokens scored by a few calibrated channels of their keys, kept in four bits.
#include "core/select/common_parameters.h"
#include "core/select/label_index.h"
#include "core/select/memory_sizes.h"

#include <algorithm>
#include <cmath>

namespace kvscope {
namespace {

using select::TokenRange;

class DoubleSparsity final : public Selector {
public:
    DoubleSparsity(const SelectorContext& context, const ParameterValues& values)
        : context_(context), heavy_(values.integer("heavy_tokens")), bits_(std::stoi(values.text("label_bits"))),
          labels_(context, std::max(1, context.shape.dim / values.integer("group_factor")), bits_,
                  select::ChannelRule::MeanProduct) {}

    void prompt(const PromptPiece& piece) override { labels_.prompt(piece); }
    void promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>&) override {
        labels_.promptDone(layer, sequence, tokens);
    }
    void append(std::span<HeadStep> heads) override { labels_.append(heads); }

    void score(std::span<HeadStep> heads) override {
        forEachItem(context_.kernels, heads, [&](HeadStep& item) {
            const auto channels = labels_.channels(item.layer, item.sequence, item.kvHead);
            // 1/sqrt(channels) where the model scales by 1/sqrt(dim).
            const float scale = context_.rules.scale * std::sqrt(float(context_.shape.dim) / float(channels.size()));
            const TokenRange visible{item.firstToken, item.position + 1};
            select::labelScores(labels_.labels(item.layer, item.sequence, item.kvHead), channels, item.rows.q,
                                context_.group(), context_.shape.dim, scale, bits_, {&visible, 1}, item.windowScores,
                                item.queryAware);
        });
    }

    void choose(std::span<HeadStep> heads) override {
        forEachItem(context_.kernels, heads, [&](HeadStep& item) {
            const TokenRange visible{item.firstToken, item.position + 1};
            select::bestTokens({&visible, 1}, item.queryAware, heavy_, item.order, item.tokens);
            item.queryAgnostic.clear();
            for (const std::int32_t token : item.tokens)
                item.queryAgnostic.push_back(item.queryAware[token - item.firstToken]);
            select::chooseTokens(item, item.queryAgnostic, Origin::TokenLevel, item.position + 1);
        });
    }

    /// Counts the chosen tokens, whose keys and values all come from the host; only the newest is on the device still.
    Loads load(std::span<HeadStep> heads) override {
        Loads loads;
        if (!context_.offload) return loads;
        const std::int64_t bytes = select::tokenBytes(context_.cache.layout());
        for (HeadStep& item : heads) {
            for (std::size_t i = 0; i < item.tokens.size(); ++i)
                item.loads.hit[i] = item.tokens[i] == item.position ? 1 : 0;
            loads.units += std::count(item.loads.hit.begin(), item.loads.hit.end(), std::uint8_t(0));
            loads.storedBytes += bytes;
        }
        loads.bytes = loads.units * bytes;
        return loads;
    }
    std::int64_t storedBytes(LayerId, int tokens) const override {
        return context_.offload ? tokens * context_.shape.kvHeads * select::tokenBytes(context_.cache.layout()) : 0;
    }

private:
    const SelectorContext context_;
    const int heavy_, bits_;
    select::LabelIndex labels_;
};

} // namespace

MethodEntry doubleSparsityMethod() {
    MethodEntry entry;
    entry.name = "double-sparsity";
    entry.title = "Double Sparsity";
    entry.source = "Post-Training Sparse Attention with Double Sparsity";
    entry.summary =
        "Keeps a few channels of every key in four bits on the device, scores every token with them and attends to the "
        "best ones exactly; keys and values of those are gathered from the host. Channels come from "
        "double_sparsity.safetensors beside the model, or else from the prompt.";
    entry.parameters = {
        select::blockSize(),
        {"heavy_tokens", ParameterType::Integer, "256", 1, 1 << 24, "tokens", "Tokens each KV head attends.", {}},
        {"group_factor",
         ParameterType::Integer,
         "8",
         1,
         1024,
         "",
         "Channels of a head for each one that its label keeps.",
         {}},
        select::labelBits(),
        select::bias(),
        select::biasScale()};
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        SelectionSpec spec = select::commonSpec(values, config);
        select::setTokenBudget(spec, values.integer("heavy_tokens"));
        return spec;
    };
    entry.makeSelector = [](const ParameterValues& values,
                            const SelectorContext& context) -> std::unique_ptr<Selector> {
        return std::make_unique<DoubleSparsity>(context, values);
    };
    entry.onDevice = KVSCOPE_ON_DEVICE(doubleSparsityOnDevice);
    entry.abilities = [](const MethodUse& use) {
        Abilities a = select::usualAbilities(use.backend);
        a.prompt = a.scores = true;
        return a;
    };
    entry.memory = [](const MethodUse& use, ContextLength length) -> std::vector<MemoryNeed> {
        const select::Sizes s(use, length);
        const std::int64_t channels = std::clamp<std::int64_t>(s.dim / use.values.integer("group_factor"), 1, s.dim);
        std::vector<MemoryNeed> needs{select::labelsOf(s, channels, use.values.text("label_bits") == "4")};
        const std::int64_t heavy = s.atMost(use.values.integer("heavy_tokens"));
        if (!s.gpu) { // logits of each query head of the group, then scores and their order
            needs.push_back(select::chosenTokens(s, heavy, (use.config.group() + 2) * s.tokens));
            return needs;
        }
        MemoryNeed chosen = select::kvOf("chosen_kv", "chosen tokens", MemoryTier::Device, s.kvBytes(heavy));
        chosen.layers = LayerSet::None; // the layers of a step use it one after another
        needs.push_back(select::asLongest(s, chosen));
        needs.push_back(select::storeOf("token_store", use, s.kvBytes(s.tokens)));
        return needs;
    };
    return entry;
}

} // namespace kvscope
