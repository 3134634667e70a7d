// What the command line says of a run, and what `run` and `run --fork` have in common.
#pragma once

#include "app/cli/prompt_options.h"
#include "core/model/model.h"
#include "core/session/decode_session.h"
#include "core/session/option_text.h"
#include "profiler/cupti/pcie_counting.h"
#include "profiler/run/run_recording.h"

#include <string>
#include <vector>

namespace kvscope {
class Options;
}

namespace kvscope::cli {

struct RunArguments {
    std::string model = kDefaultModel, calibration, backend = "cpu", link = "pcie5", deviceKv, level = "full", trace,
                logits, pcieCounters = nameOf(PcieCounting::Auto), fork, kvType, products;
    PromptArguments prompts;
    std::vector<std::string> settings;
    SessionOptions session;
    int batch = 0, withoutBlock = -1, ofSequence = 0;
    bool noModelPath = false;
    bool verify = false, json = false, overwrite = false, noEos = false, resident = false, noCalls = false;
};

/// @throws Error(BadInput)
Backend parseBackend(const std::string& text);
RecordLevel parseLevel(const std::string& text);
/// Refuses options that change nothing in this run. @throws Error(BadInput) for the first one that was given
void refuseVainOptions(const SessionOptions& options, const Options& given, bool denoises);
/// How the run is recorded, as the arguments say.
RecordingRequest recordingOf(const RunArguments& arguments, RecordLevel level);

/// `run --fork`. @return exit status
int runFork(RunArguments& arguments, const Options& given);

} // namespace kvscope::cli
