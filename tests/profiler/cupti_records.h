// Records of CUPTI made by hand. Included only where CUPTI's headers are there.
#pragma once

#include <cstdint>
#include <cupti.h>

namespace kvscope::cupti {

/// A call of the CUDA runtime; callback: its number among CUPTI's callbacks.
inline CUpti_ActivityAPI call(std::uint32_t callback, std::uint32_t correlation, std::uint64_t start, std::uint64_t end,
                              std::uint32_t thread = 1) {
    CUpti_ActivityAPI record{};
    record.kind = CUPTI_ACTIVITY_KIND_RUNTIME;
    record.cbid = callback;
    record.correlationId = correlation;
    record.start = start;
    record.end = end;
    record.threadId = thread;
    return record;
}

/// A kernel that node `node` of a graph launched; 0: none did.
inline CUpti_ActivityKernel10 kernel(const char* name, std::uint32_t correlation, std::uint64_t node,
                                     std::uint64_t start, std::uint64_t end) {
    CUpti_ActivityKernel10 record{};
    record.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    record.name = name;
    record.correlationId = correlation;
    record.graphNodeId = node;
    record.streamId = 7;
    record.start = start;
    record.end = end;
    return record;
}

/// Ties the launch to a place: external is LaunchPlace::packed.
inline CUpti_ActivityExternalCorrelation claim(std::uint32_t correlation, std::uint64_t external) {
    CUpti_ActivityExternalCorrelation record{};
    record.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION;
    record.externalKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
    record.correlationId = correlation;
    record.externalId = external;
    return record;
}

} // namespace kvscope::cupti
