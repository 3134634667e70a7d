// The functions of libcupti that recording kernels takes, as a table: a test puts functions of its own in their place.
// Included only where CUPTI's headers are there.
#pragma once

#include "profiler/cupti/cupti_library.h"

#include <cupti.h>
#include <string>

namespace kvscope {

struct CuptiCalls {
    decltype(&cuptiSubscribe) subscribe = nullptr;
    decltype(&cuptiUnsubscribe) unsubscribe = nullptr;
    decltype(&cuptiEnableCallback) enableCallback = nullptr;
    decltype(&cuptiActivityRegisterCallbacks) registerCallbacks = nullptr;
    decltype(&cuptiActivityRegisterTimestampCallback) registerTimestamp = nullptr;
    decltype(&cuptiActivityEnable) enable = nullptr;
    decltype(&cuptiActivityDisable) disable = nullptr;
    decltype(&cuptiActivityFlushAll) flushAll = nullptr;
    decltype(&cuptiActivityGetNextRecord) nextRecord = nullptr;
    decltype(&cuptiActivityGetNumDroppedRecords) droppedRecords = nullptr;
    decltype(&cuptiActivityPushExternalCorrelationId) pushCorrelation = nullptr;
    decltype(&cuptiActivityPopExternalCorrelationId) popCorrelation = nullptr;
    decltype(&cuptiGetGraphNodeId) graphNodeId = nullptr;
    decltype(&cuptiGetCallbackName) callbackName = nullptr;
    decltype(&cuptiGetResultString) resultString = nullptr;

    /// The library's. @return false, with the reason, where it is missing or of another version
    bool load(std::string& refusal) {
        const CuptiLibrary* library = CuptiLibrary::find(refusal);
        if (library == nullptr) return false;
        bool complete = true;
        const auto find = [&](auto& function, const char* name) { complete &= library->find(function, name); };
        find(subscribe, "cuptiSubscribe");
        find(unsubscribe, "cuptiUnsubscribe");
        find(enableCallback, "cuptiEnableCallback");
        find(registerCallbacks, "cuptiActivityRegisterCallbacks");
        find(registerTimestamp, "cuptiActivityRegisterTimestampCallback");
        find(enable, "cuptiActivityEnable");
        find(disable, "cuptiActivityDisable");
        find(flushAll, "cuptiActivityFlushAll");
        find(nextRecord, "cuptiActivityGetNextRecord");
        find(droppedRecords, "cuptiActivityGetNumDroppedRecords");
        find(pushCorrelation, "cuptiActivityPushExternalCorrelationId");
        find(popCorrelation, "cuptiActivityPopExternalCorrelationId");
        find(graphNodeId, "cuptiGetGraphNodeId");
        find(callbackName, "cuptiGetCallbackName");
        find(resultString, "cuptiGetResultString");
        if (!complete) refusal = "libcupti is of another version than this program was built for";
        return complete;
    }
};

} // namespace kvscope
