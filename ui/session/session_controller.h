// Runs sessions for the desktop: model loading and decoding on a worker thread, recorded into a trace the workspace
// shows.
#pragma once

#include "core/session/decode_session.h"
#include "profiler/cupti/pcie_counting.h"
#include "ui/session/prompt_source.h"

#include <QObject>
#include <QString>

#include <memory>
#include <optional>
#include <vector>

namespace kvscope::ui {

class Workspace;

struct SessionRequest {
    QString model;                      // embedded name or path
    std::vector<QString> prompts;       // one per sequence
    std::optional<PromptSource> source; // instead of `prompts`: built once the model is there
    SessionOptions options;
    RecordLevel level = RecordLevel::Full;
    bool recordGpu = true;                          // on a GPU at level full: also kernels, copies and PCIe counters
    bool recordCalls = true;                        // with recordGpu: the CUDA calls, with arrows to what they started
    PcieCounting pcieCounting = PcieCounting::Auto; // with recordGpu
    QString tracePath;                              // empty: a new file in the traces folder
    bool startPaused = false;                       // stop before the first decode step
};

/// GUI thread object. States: Idle -> Loading -> Prefill -> Decoding <-> Paused -> Idle.
class SessionController final : public QObject {
    Q_OBJECT
public:
    enum class State { Idle, Loading, Prefill, Decoding, Paused };
    explicit SessionController(Workspace& workspace, QObject* parent = nullptr);
    ~SessionController() override; // stops and joins

    State state() const;
    /// Loads (and keeps) a model for the form: parameters' defaults, block text. Emits modelLoaded or failed.
    void loadModel(const QString& nameOrPath);
    std::shared_ptr<const Model> model() const; // last loaded; may be null
    /// Takes a model that another window has loaded, instead of reading it again. Emits modelLoaded.
    void adoptModel(const QString& nameOrPath, std::shared_ptr<const Model> model);

    void start(const SessionRequest& request);
    void pause();
    void resume();
    void stepOnce(); // starts paused runs for one step
    void stop();     // also cancels loading and prefill

    /// Where new traces go; made when it is not there yet.
    static QString tracesFolder();

signals:
    void stateChanged();
    void progress(double fraction, const QString& what);
    void modelLoaded(const QString& nameOrPath);
    void remark(const QString& sentence); // the session goes on without something
    void finished(bool completed);        // false: stopped by the person
    void failed(const QString& sentence);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

} // namespace kvscope::ui
