// Runs a tuning on a worker thread and reports to the GUI thread how far it is and what it has measured.
#pragma once

#include "profiler/tune/tune.h"

#include <QObject>
#include <QString>

#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace kvscope::ui {

/// What is tuned: the request, and the prompts that are made or read for it.
struct TuningTask {
    TuneRequest request;
    std::string prompts = "needles"; // as promptSet() takes it
    PromptSetSize size;
};

/// Lives on the GUI thread. Runs one tuning at a time.
class TuningJob final : public QObject {
    Q_OBJECT
public:
    explicit TuningJob(QObject* parent = nullptr) : QObject(parent) {}
    ~TuningJob() override { cancel(); } // the destructor of worker_ waits for its end

    bool isRunning() const { return running_; }
    void start(std::shared_ptr<const Model> model, TuningTask task);
    /// Ends the tuning. What was measured until then is handed over as the result.
    void cancel() { worker_.request_stop(); }

signals:
    /// Emitted at most every 50 ms.
    void advanced(double fraction, const QString& what);
    /// The candidates were predicted, or one was measured.
    void changed(const kvscope::TuneResult& result);
    void finished(const kvscope::TuneResult& result);
    void cancelled(); // before anything was measured
    void failed(const QString& sentence);

private:
    void take(double fraction, std::string_view what); // called on the worker thread

    bool running_ = false;
    std::mutex mutex_; // guards fraction_, what_ and announced_
    double fraction_ = 0;
    QString what_;
    bool announced_ = false;
    std::jthread worker_; // last member: the worker uses all others
};

} // namespace kvscope::ui
