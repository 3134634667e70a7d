#include "core/engine/cpu/cpu_sequences.h"

#include "core/cache/cache_policy.h"
#include "core/engine/cpu/prompt_lengths.h"

namespace kvscope {
namespace {

KvCacheOptions cacheOptionsOf(const EngineSetup& setup) {
    const ModelConfig& config = setup.model->config();
    KvCacheOptions options;
    options.shape = {config.layers, config.kvHeads, config.headDim, config.valueDim()};
    options.layout = {setup.spec.blockSize, config.headDim, setup.spec.bias.scale != 0.f, config.storedValueDim()};
    options.maxTokens = setup.maxTokens;
    options.type = setup.options.kvType.value_or(KvType::F32);
    options.plans = setup.plans;
    options.slots = setup.slots;
    return options;
}

} // namespace

CpuSequences::CpuSequences(const EngineSetup& setup, Kernels& kernels, CpuLayerPasses& passes, StageClock& clock)
    : model(setup.model),
      spec(setup.spec), rules{model->config().queryHeads, model->config().attentionScale(), model->config().windows},
      rope(model->config().rope, lengthsOf(setup.prompts), setup.maxTokens),
      cache(cacheOptionsOf(setup), spec, findCachePolicy(setup.cachePolicy)),
      context{kernels,
              cache,
              *model,
              spec,
              cache.plans(),
              setup.abilities,
              rules,
              cacheOptionsOf(setup).shape,
              rope,
              PerRow<int>(setup.maxTokens),
              setup.options.offload,
              findCachePolicy(setup.cachePolicy).byWorth},
      selector(setup.makeSelector(context)), transfers(context, *selector, setup.options.link),
      promptAttention(context, *selector, transfers, clock),
      promptReader(passes, promptAttention, *model, rope, setup.prompts, clock) {}

} // namespace kvscope
