// One measured decode of a model shape: what a job asks for and what it gives.
#pragma once

#include "core/cuda/cuda_engine_options.h"
#include "core/cuda/device_memory.h"
#include "core/cuda/device_model.h"
#include "core/cuda/testing/planted_steps.h"
#include "core/trace/trace_sink.h"
#include "profiler/cupti/pcie_counting.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::bench {

struct DecodeJob {
    std::string shape = "nosa-8b", method = "nosa";
    int context = 16384, batch = 1, steps = 64;
    bool offload = false, record = true;
    std::optional<KvType> kvType; // of full blocks on the host, the link and in slots; nothing: bf16
    int slots = 0;                // block slots per head of an offloaded run; 0: the method's budget
    bool leastRecentlyUsed = false;
    bool moveBlocks = true;                                      // false: as PlantedSteps::moveBlocks
    std::vector<std::pair<std::string, std::string>> parameters; // of the method, beside its defaults
    int aheadBlocks = 0;              // thread blocks of a lookahead's transfers; 0: by the batch
    std::optional<bool> transferLoop; // as DeviceTransfers::loop
    int storedSequences = 0;          // as PlantedSteps::stored; planted, and the method offloads all layers
    double gamma = -1;                // planted locality; negative: the model's own selection
    RecordLevel level = RecordLevel::Selections;
    std::string trace; // record the measured steps into this file, with the kernels where CUPTI is there
    PcieCounting pcie = PcieCounting::Auto; // in a trace at level full
    /// The papers' equivalent batch (EB): batch x tokens that a sequence has on the device / 4096; 0: not given.
    int equivalentBatch = 0;
    std::string note; // by which a grid finds this row
};

/// Measured in the same run, bytes per second.
struct Ceilings {
    double read = 0; // of device memory
    double copy = 0; // pinned, host to device
};

/// A row of results. store: pinned memory to use for the KV store if it is large enough, or null.
/// @throws Error(OutOfMemory) if it does not fit
nlohmann::ordered_json measureDecode(const DecodeJob& job, const std::shared_ptr<const DeviceModel>& model,
                                     const Ceilings& ceilings, const PinnedMemory* store = nullptr);

/// The options of the job's engine. changes: what the job changes of the engine's steps
CudaEngineOptions engineOptions(const DecodeJob& job, const DeviceModel& model, PlantedSteps& changes);

/// Bytes of host memory that an offloaded job needs; 0 if nothing is offloaded.
std::size_t hostStoreBytes(const DecodeJob& job);

/// The row as a line to read.
std::string describe(const nlohmann::ordered_json& row);

} // namespace kvscope::bench
