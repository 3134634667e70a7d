// What a session has in common whether it decodes token by token (decode_session.cpp) or denoises (diffusion_run.h).
// The model decides which of the two it does.
#pragma once

#include "core/model/mapped_watch.h"
#include "core/session/decode_session.h"
#include "core/session/session_checks.h"

#include <memory>
#include <stop_token>
#include <string>
#include <vector>

namespace kvscope {

struct SessionRun {
    /// Checks the options that both kinds of session have. @throws Error(BadInput | Unsupported)
    SessionRun(std::shared_ptr<const Model> loaded, std::vector<std::vector<std::int32_t>> ids,
               SessionOptions sessionOptions, TraceSink& traceSink);
    virtual ~SessionRun() = default;
    SessionRun(const SessionRun&) = delete;
    SessionRun& operator=(const SessionRun&) = delete;

    virtual void prefill(const Progress& progress, const std::stop_token& stop) = 0;
    virtual bool step() = 0;
    virtual bool finished() const = 0;
    virtual const float* logits(int sequence) const = 0;
    virtual void forceNextTokens(const std::vector<std::int32_t>& ids) = 0;
    /// Waits until the recorder of the GPU's kernels has handed over those of this run.
    virtual void endGpuTrace() noexcept {}
    void end(RunStatus status, const std::string& message);

    /// Every prompt has tokens of the vocabulary and room for `added` more.
    void checkPrompts(int added) const;
    /// The method's parameters with the session's settings. @throws Error(BadInput | Unsupported)
    void resolveParameters();
    /// Fills what RunInfo says of model, method and session. The run's own parameters follow those of the method.
    void describe(const std::string& device);
    /// Hands a step over, without what the sink's level leaves out. @throws Error(Storage) where it was computed with
    /// weights that another program had cut off meanwhile
    void commit(std::unique_ptr<StepRecord> record);

    const CutFilesReadAsZeros zeros; // of which commit() makes no step
    const std::shared_ptr<const Model> model;
    const std::shared_ptr<const RunPrompts::Ids> promptIds; // the sink's too, while it writes them
    const RunPrompts::Ids& prompts;
    SessionOptions options;
    TraceSink& sink;
    const MethodEntry& method;
    ParameterValues parameters;
    SelectionSpec spec;
    RunInfo info;
    std::vector<std::vector<std::int32_t>> generated;
    SessionSummary summary;
    int stepNumber = 0;
    bool prefilled = false, ended = false;
};

/// The run of a model that denoises block by block.
std::unique_ptr<SessionRun> makeDenoiseRun(std::shared_ptr<const Model> model,
                                           std::vector<std::vector<std::int32_t>> prompts, SessionOptions options,
                                           TraceSink& sink);
/// The run of a model that denoises a whole canvas.
std::unique_ptr<SessionRun> makeCanvasRun(std::shared_ptr<const Model> model,
                                          std::vector<std::vector<std::int32_t>> prompts, SessionOptions options,
                                          TraceSink& sink);

} // namespace kvscope
