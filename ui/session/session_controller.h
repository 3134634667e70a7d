// Runs sessions for the desktop: loads the model and decodes on a worker thread, and records the run into a trace that
// the workspace shows.
#pragma once

#include "core/session/decode_session.h"
#include "profiler/cupti/pcie_counting.h"
#include "profiler/run/fork.h"
#include "ui/frame/workspace.h"
#include "ui/session/prompt_source.h"

#include <QObject>
#include <QString>

#include <memory>
#include <optional>
#include <vector>

namespace kvscope::ui {

/// A recorded run that goes on from one of its steps under other settings.
struct ForkRequest {
    RunKey key;
    int step = 0;
    ForkChange change;
};

struct SessionRequest {
    QString model;                // name of an embedded model, or a path
    std::vector<QString> prompts; // one prompt per sequence
    /// Replaces `prompts`; the prompts are built when the model is loaded.
    std::optional<PromptSource> source;
    /// Replaces model, prompts, options and level: they are the recorded ones, changed. Before the fork begins, the
    /// recorded settings are run again up to its step, to see whether the recorded tokens come out.
    std::optional<ForkRequest> fork;
    SessionOptions options;
    RecordLevel level = RecordLevel::Full;
    /// On a GPU and at level Full: records kernels, copies and PCIe counters too.
    bool recordGpu = true;
    /// With recordGpu: records the CUDA calls too, with arrows to the kernels and copies that they started.
    bool recordCalls = true;
    PcieCounting pcieCounting = PcieCounting::Auto; // with recordGpu
    QString tracePath;                              // empty: a new file in the folder of traces
    bool startPaused = false;                       // pause before the first decode step
    /// Of the queue: the run is shown only to a person who watches the run recorded before it, and its model does not
    /// become the one that model() gives.
    bool inBackground = false;
};

/// Lives on the GUI thread. States: Idle -> Loading -> Prefill -> Decoding <-> Paused -> Idle.
class SessionController final : public QObject {
    Q_OBJECT
public:
    enum class State { Idle, Loading, Prefill, Decoding, Paused };
    explicit SessionController(Workspace& workspace, QObject* parent = nullptr);
    ~SessionController() override; // stops the running job and waits for the worker

    State state() const;
    bool isActive() const; // from start() to finished() or failed()
    /// Loads a model and keeps it, for the defaults in the form and for sessions. Emits modelLoaded or failed.
    void loadModel(const QString& nameOrPath);
    std::shared_ptr<const Model> model() const; // the model loaded last; null: none
    /// Takes a model that is loaded already, by another window or after a calibration, so that it is not read again.
    /// Emits modelLoaded.
    void adoptModel(const QString& nameOrPath, std::shared_ptr<const Model> model);

    void start(const SessionRequest& request);
    void pause();
    void resume();
    void stepOnce(); // a paused session makes one step; a running one pauses
    void stop();     // also stops loading and prefill

    /// The folder for new traces. The call makes the folder if it does not exist.
    static QString tracesFolder();
    /// Makes a new empty file there for a trace, named by the time and `what`, and returns its path. Another window may
    /// choose the same name in the same second, so the name is taken only if the file did not exist. @throws
    /// Error(Storage) where the folder cannot be made
    static QString newTrace(const std::string& what);

signals:
    void stateChanged();
    void progress(double fraction, const QString& what);
    void modelLoaded(const QString& nameOrPath);
    void began(const kvscope::ui::RunKey& key); // the run is in its trace
    /// The session goes on, but something is missing, e.g. GPU kernels are not recorded.
    void remark(const QString& sentence);
    void finished(bool completed); // `completed` is false if the user stopped the session
    void failed(const QString& sentence);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

} // namespace kvscope::ui
