// A calibration under way: learns on a worker thread, tells the GUI thread how far it is, and hands over the model as
// it is with what was learned.
#pragma once

#include "core/calibrate/calibrate.h"

#include <QObject>
#include <QString>

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace kvscope::ui {

/// One step of a training.
struct LossPoint {
    CalibrateStage stage = CalibrateStage::Reading;
    int step = 0;
    double loss = 0, testLoss = 0; // of the texts left out; NaN where it was not taken
};

/// GUI thread object; one calibration at a time.
class CalibrationJob final : public QObject {
    Q_OBJECT
public:
    explicit CalibrationJob(QObject* parent = nullptr) : QObject(parent) {}
    ~CalibrationJob() override { cancel(); } // and joins

    bool isRunning() const { return running_; }
    /// Trains on `model` and writes into `folder`; nothing is written when it is cancelled or fails.
    void start(const QString& nameOrPath, std::shared_ptr<const Model> model, const CalibrateOptions& options,
               const QString& folder);
    void cancel() { worker_.request_stop(); }

signals:
    /// At most every 50 ms, with what came since the last time.
    void advanced(double fraction, const QString& what, const std::vector<kvscope::ui::LossPoint>& points);
    void finished(const std::vector<std::string>& files, std::shared_ptr<const kvscope::Model> calibrated,
                  const kvscope::CalibrateResult& result);
    void cancelled();
    void failed(const QString& sentence);

private:
    void take(const CalibrateProgress& progress); // worker
    void deliver();

    bool running_ = false;
    std::mutex mutex_; // guards what the worker hands over
    CalibrateProgress newest_;
    std::vector<LossPoint> points_;
    bool announced_ = false;
    std::jthread worker_; // last: it uses everything above
};

} // namespace kvscope::ui
