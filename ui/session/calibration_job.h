// Runs a calibration on a worker thread, reports its progress to the GUI thread, and finally hands over the model
// loaded again with what was learned.
#pragma once

#include "core/calibrate/calibrate.h"

#include <QObject>
#include <QString>

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace kvscope::ui {

/// The losses at one step of a training.
struct LossPoint {
    CalibrateStage stage = CalibrateStage::Reading;
    int step = 0;
    double loss = 0, testLoss = 0; // testLoss: of the texts left out; NaN if not measured
};

/// Lives on the GUI thread. Runs one calibration at a time.
class CalibrationJob final : public QObject {
    Q_OBJECT
public:
    explicit CalibrationJob(QObject* parent = nullptr) : QObject(parent) {}
    ~CalibrationJob() override { cancel(); } // the destructor of worker_ waits for its end

    bool isRunning() const { return running_; }
    /// Calibrates `model` and writes what was learned into `folder`. If the calibration is cancelled or fails, nothing
    /// is written.
    void start(const QString& nameOrPath, std::shared_ptr<const Model> model, const CalibrateOptions& options,
               const QString& folder);
    void cancel() { worker_.request_stop(); }

signals:
    /// Emitted at most every 50 ms. `points`: the steps since the last time.
    void advanced(double fraction, const QString& what, const std::vector<kvscope::ui::LossPoint>& points);
    void finished(const std::vector<std::string>& files, std::shared_ptr<const kvscope::Model> calibrated,
                  const kvscope::CalibrateResult& result);
    void cancelled();
    void failed(const QString& sentence);

private:
    void take(const CalibrateProgress& progress); // called on the worker thread
    void deliver();

    bool running_ = false;
    std::mutex mutex_; // guards newest_, points_ and announced_
    CalibrateProgress newest_;
    std::vector<LossPoint> points_;
    bool announced_ = false;
    std::jthread worker_; // last member: the worker uses all others
};

} // namespace kvscope::ui
