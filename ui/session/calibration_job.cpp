#include "ui/session/calibration_job.h"

#include "base/error.h"

#include <QTimer>

#include <functional>
#include <utility>

namespace kvscope::ui {

namespace {
constexpr int kTellEveryMs = 50;
}

void CalibrationJob::start(const QString& nameOrPath, std::shared_ptr<const Model> model,
                           const CalibrateOptions& options, const QString& folder) {
    if (running_) return;
    running_ = true;
    points_.clear();
    worker_ = std::jthread([this, name = nameOrPath.toStdString(), model = std::move(model), options,
                            to = folder.toStdString()](const std::stop_token& stop) {
        std::function<void()> end;
        try {
            checkCalibrationFolder(to);
            CalibrateResult result = calibrate(
                model, options, [this](const CalibrateProgress& progress) { take(progress); }, stop);
            auto files = writeCalibration(to, *model, result);
            auto calibrated = Model::load(name, {}, {}, to);
            result.forecast.reset(); // the weights are in the files; only reports and losses are shown
            result.retaining.reset();
            end = [this, files = std::move(files), calibrated = std::move(calibrated), result = std::move(result)] {
                emit finished(files, calibrated, result);
            };
        } catch (const Error& error) {
            if (error.kind == ErrorKind::Cancelled)
                end = [this] { emit cancelled(); };
            else
                end = [this, sentence = QString::fromStdString(oneLine(error))] { emit failed(sentence); };
        } catch (const std::bad_alloc&) {
            end = [this] {
                emit failed(tr("There is not enough memory for so much text; use fewer or shorter texts."));
            };
        } catch (const std::exception& error) {
            end = [this, what = QString::fromUtf8(error.what())] {
                emit failed(tr("The calibration ended: %1").arg(what));
            };
        }
        QMetaObject::invokeMethod(this, [this, end = std::move(end)] {
            worker_.join();
            deliver();
            running_ = false;
            end();
        });
    });
}

void CalibrationJob::take(const CalibrateProgress& progress) {
    const std::lock_guard lock(mutex_);
    newest_ = progress;
    if (progress.step > 0) points_.push_back({progress.stage, progress.step, progress.loss, progress.testLoss});
    if (std::exchange(announced_, true)) return;
    QMetaObject::invokeMethod(this, [this] { QTimer::singleShot(kTellEveryMs, this, &CalibrationJob::deliver); });
}

void CalibrationJob::deliver() {
    std::vector<LossPoint> points;
    CalibrateProgress newest;
    {
        const std::lock_guard lock(mutex_);
        points.swap(points_);
        newest = newest_;
        announced_ = false;
    }
    if (!running_) return;
    emit advanced(newest.fraction, QString::fromStdString(newest.what), points);
}

} // namespace kvscope::ui
