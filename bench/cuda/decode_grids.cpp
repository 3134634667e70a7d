#include "bench/cuda/decode_grids.h"

#include "base/error.h"
#include "bench/cuda/grid_jobs.h"

#include <array>
#include <fmt/format.h>
#include <string>

namespace kvscope::bench {
namespace grids {

DecodeJob job(const char* method, int context, int batch, double offloadedGamma) {
    DecodeJob job;
    job.method = method;
    job.context = context;
    job.batch = batch;
    job.steps = 48;
    job.offload = offloadedGamma >= 0;
    job.gamma = offloadedGamma;
    return job;
}

double tokensPerSecond(const Json& row) { return row["tokens_per_s"].get<double>(); }

Json noConclusions(const Json&) { return Json::object(); }

} // namespace grids

std::span<const DecodeGrid> decodeGrids() {
    using namespace grids;
    static constexpr std::array table{
        DecodeGrid{"steps", "How close do steps come to the floor of their bytes?", stepJobs, noConclusions},
        DecodeGrid{"table2", "Throughput at matched GPU memory, as in Table 2 of the NOSA paper", tableJobs,
                   tableConclusions},
        DecodeGrid{"exposure", "Is the reported exposed transfer time what transfers really cost?", exposureJobs,
                   exposureConclusions},
        DecodeGrid{"recording", "What do recording and kernel tracing cost?", recordingJobs, recordingConclusions},
        DecodeGrid{"one", "How close do steps of one sequence come to the floor of their bytes?", batchOneJobs,
                   noConclusions},
        DecodeGrid{"contexts", "What does a context of 96K cost beside one of 16K?", contextJobs, noConclusions},
        DecodeGrid{"batches", "What does a step take from one sequence to 256?", batchJobs, noConclusions},
        DecodeGrid{"offloaded", "What do transfers add to a step, and how fast is it beside the paper's?",
                   offloadedJobs, noConclusions},
        DecodeGrid{"ahead", "What does a layer's lookahead leave of the transfers of offloaded nosa?", aheadJobs,
                   noConclusions},
        DecodeGrid{"halves", "What do halves of a batch hide of transfers that nothing announces?", halvesJobs,
                   noConclusions},
        DecodeGrid{"same-memory", "What do offloaded pools gain over full attention in the same GPU memory?",
                   sameMemoryJobs, noConclusions},
        DecodeGrid{"kv-types", "What do blocks of 8 and 4 bits save of a step?", kvTypeJobs, noConclusions},
        DecodeGrid{"kv-slots", "What do slots of 8 and 4 bits save of attention, and what do more of them hold?",
                   kvSlotJobs, noConclusions},
        DecodeGrid{"recorded", "What do recording and kernel tracing cost, without the GPU's counters?", recordedJobs,
                   noConclusions},
        DecodeGrid{"long", "Does throughput hold over a long answer?", longJobs, noConclusions},
        DecodeGrid{"lookahead", "What does fetching one layer ahead hide of the transfers?", lookaheadJobs,
                   lookaheadConclusions},
        DecodeGrid{"hidden-transfers", "The same, of the batches whose transfers a layer can hide", hiddenTransferJobs,
                   lookaheadConclusions},
        DecodeGrid{"budgets", "What do 2, 8 and 24 GB of GPU memory for keys and values allow?", budgetJobs,
                   noConclusions},
        DecodeGrid{"methods", "What do methods with a memory of their own cost, and what do they move?", methodJobs,
                   noConclusions},
        DecodeGrid{"operators", "What does choosing tokens inside blocks save of attention and selection?",
                   operatorJobs, operatorConclusions},
    };
    return table;
}

const DecodeGrid& findDecodeGrid(std::string_view name) {
    std::string known;
    for (const DecodeGrid& grid : decodeGrids()) {
        if (grid.name == name) return grid;
        known += fmt::format("{}{}", known.empty() ? "" : ", ", grid.name);
    }
    throw Error(ErrorKind::BadInput, fmt::format("unknown grid '{}'", name), "known grids: " + known);
}

} // namespace kvscope::bench
