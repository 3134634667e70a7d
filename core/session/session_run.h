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
    /// Fills `info` from the model, the method and the options. In info.paramsJson the session's options follow the
    /// method's parameters.
    void describe(const std::string& device);
    /// Removes from the record what the sink's level leaves out, and hands it to the sink. @throws Error(Storage) if
    /// another program cut weights off while the step was computed
    void commit(std::unique_ptr<StepRecord> record);

    const CutFilesReadAsZeros zeros; // commit() refuses a step that read any
    const std::shared_ptr<const Model> model;
    const std::shared_ptr<const RunPrompts::Ids> promptIds; // shared with the sink, which writes them
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
