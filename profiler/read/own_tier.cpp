#include "profiler/read/own_tier.h"

#include "base/json_reading.h"
#include "core/trace/run_meta.h"
#include "profiler/read/trace_reader.h"

namespace kvscope {

bool hasOwnTier(const RunRow& run) {
    return run.deviceSlots == 0 && !run.metaOr(run_meta::kKvBlockTokens).empty() &&
           run.metaOr(run_meta::kDenoisingBlock).empty() && member(parseJson(run.paramsJson), "offload") != false;
}

} // namespace kvscope
