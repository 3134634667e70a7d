// What a run was recorded with, as the settings of a session: so that it can be run again, or go on in another way from
// one of its steps.
#pragma once

#include "core/session/decode_session.h"
#include "profiler/read/trace_reader.h"

#include <string>
#include <vector>

namespace kvscope {

struct RecordedSettings {
    int runId = 0;
    SessionOptions options; // the threads are the recorded ones; 0: all cores
    RecordLevel level = RecordLevel::Full;
    std::string model;       // name of an embedded model, or a path
    std::string fingerprint; // of the model's weight files; empty: the trace is older than that
    int layers = 0, queryHeads = 0, kvHeads = 0, headDim = 0; // of the model
    std::vector<std::string> remarks;                         // what is not as it was recorded; whole sentences
};

/// @throws Error(BadInput) where the run cannot be run again: another tool or engine recorded it, its method, a setting
/// or its policy is not known here, or the trace does not say where the model lies
/// model: where the model lies now; empty: where the trace says
RecordedSettings recordedSettings(const RunRow& row, const std::string& model = {});

/// Checks by fingerprint and shape that this is the model with which the run was recorded. @throws Error(BadInput)
void requireRecordedModel(const RecordedSettings& recorded, const Model& model);

} // namespace kvscope
