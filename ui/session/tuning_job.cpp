#include "ui/session/tuning_job.h"

#include "base/error.h"

#include <QTimer>

#include <functional>
#include <utility>

namespace kvscope::ui {

void TuningJob::start(std::shared_ptr<const Model> model, TuningTask task) {
    if (running_) return;
    running_ = true;
    worker_ = std::jthread([this, model = std::move(model), task = std::move(task)](const std::stop_token& stop) {
        std::function<void()> end;
        try {
            const PromptSet prompts = promptSet(*model, task.prompts, task.size);
            const auto observe = [this](const TuneResult& result) {
                QMetaObject::invokeMethod(this, [this, result] {
                    if (running_) emit changed(result);
                });
            };
            const auto progress = [this](double fraction, std::string_view what) { take(fraction, what); };
            end = [this, result = tune(model, prompts, task.request, observe, progress, stop)] {
                emit finished(result);
            };
        } catch (const Error& error) {
            if (error.kind == ErrorKind::Cancelled)
                end = [this] { emit cancelled(); };
            else
                end = [this, sentence = QString::fromStdString(oneLine(error))] { emit failed(sentence); };
        } catch (const std::bad_alloc&) {
            end = [this] { emit failed(tr("There is not enough memory; use shorter prompts or a smaller batch.")); };
        } catch (const std::exception& error) {
            end = [this, what = QString::fromUtf8(error.what())] { emit failed(tr("The tuning ended: %1").arg(what)); };
        }
        QMetaObject::invokeMethod(this, [this, end = std::move(end)] {
            worker_.join();
            running_ = false;
            end();
        });
    });
}

void TuningJob::take(double fraction, std::string_view what) {
    constexpr int kEveryMs = 50;
    const std::lock_guard lock(mutex_);
    fraction_ = fraction;
    what_ = QString::fromUtf8(what.data(), qsizetype(what.size()));
    if (std::exchange(announced_, true)) return;
    QMetaObject::invokeMethod(this, [this] {
        QTimer::singleShot(kEveryMs, this, [this] {
            double now = 0;
            QString words;
            {
                const std::lock_guard inside(mutex_);
                now = fraction_;
                words = what_;
                announced_ = false;
            }
            if (running_) emit advanced(now, words);
        });
    });
}

} // namespace kvscope::ui
