#include "ui/views/sql/sql_runner.h"

#include "base/error.h"
#include "profiler/export/output_file.h"

#include <QFile>

namespace kvscope::ui {

SqlRunner::SqlRunner(QObject* parent) : QObject(parent) {
    thread_ = std::thread([this] { work(); });
}

SqlRunner::~SqlRunner() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        wanted_ = 0;
        if (session_) session_->interrupt();
    }
    wake_.notify_all();
    thread_.join();
}

void SqlRunner::work() {
    for (;;) {
        Job job;
        {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
            if (stopping_) return;
            job = std::move(queue_.front());
            queue_.pop_front();
            if (job.id != wanted_) continue;
        }
        QString sentence;
        int offset = -1;
        bool cancelled = false;
        try {
            if (!session_ || sessionFile_ != job.file) {
                {
                    const std::lock_guard lock(mutex_);
                    session_.reset();
                }
                auto opened = std::make_shared<SqlSession>(job.file.toStdString());
                sessionFile_ = job.file;
                const std::lock_guard lock(mutex_);
                session_ = std::move(opened);
            }
            {
                // Under the lock, so that a stop comes either before (and the job is not wanted) or after it.
                const std::lock_guard lock(mutex_);
                if (job.id != wanted_) continue;
                session_->rearm();
            }
            job.work(session_.get());
            continue; // the job has reported its own result
        } catch (const Error& error) {
            cancelled = error.kind == ErrorKind::Cancelled;
            sentence = QString::fromStdString(oneLine(error));
            offset = session_ && error.kind == ErrorKind::BadInput ? session_->errorOffset() : -1;
        } catch (const std::exception& failure) {
            sentence = QString::fromUtf8(failure.what());
        }
        post(
            job.id,
            [this, cancelled, sentence, offset] {
                if (cancelled)
                    emit stopped();
                else
                    emit failed(sentence, offset);
            },
            true);
    }
}

void SqlRunner::submit(Work what) {
    {
        const std::lock_guard lock(mutex_);
        wanted_ = ++current_;
        if (session_) session_->interrupt();
        queue_.push_back({current_, file_, std::move(what)});
    }
    wake_.notify_one();
    timer_.start();
    if (!busy_) emit busyChanged(busy_ = true);
}

void SqlRunner::post(quint64 job, std::function<void()> tell, bool closes) {
    QMetaObject::invokeMethod(
        this,
        [this, job, tell = std::move(tell), closes] {
            if (job != current_) return;
            if (closes) {
                lastMs_ = timer_.elapsed();
                busy_ = false;
            }
            tell();
            if (closes && !busy_) emit busyChanged(false);
        },
        Qt::QueuedConnection);
}

void SqlRunner::stop() {
    if (!busy_) return;
    {
        const std::lock_guard lock(mutex_);
        wanted_ = ++current_;
        if (session_) session_->interrupt();
    }
    lastMs_ = timer_.elapsed();
    busy_ = false;
    emit stopped();
    emit busyChanged(false);
}

void SqlRunner::setFile(const QString& path) {
    file_ = path;
    submit([this, job = current_ + 1](SqlSession* session) {
        auto schema = session->schema();
        post(
            job, [this, schema = std::move(schema)] { emit schemaRead(schema); }, true);
    });
}

void SqlRunner::run(const QString& sql, const SqlParameters& parameters, const SqlLimits& limits) {
    submit([this, job = current_ + 1, text = sql.toStdString(), parameters, limits](SqlSession* session) {
        const SqlOutcome outcome = session->run(
            text, parameters, limits,
            [&](const std::vector<std::string>& names) {
                QStringList columns;
                for (const std::string& name : names) columns << QString::fromStdString(name);
                post(
                    job, [this, columns] { emit began(columns); }, false);
            },
            [&](std::shared_ptr<const SqlRows> rows) {
                post(
                    job, [this, rows = std::move(rows)] { emit rowsCame(rows); }, false);
            });
        post(
            job, [this, outcome] { emit finished(outcome); }, true);
    });
}

void SqlRunner::exportCsv(const QString& sql, const SqlParameters& parameters, const QString& path) {
    submit([this, job = current_ + 1, text = sql.toStdString(), parameters, path](SqlSession* session) {
        OutputFile file(QFile::encodeName(path).toStdString()); // nothing half-written stays when it stops or fails
        QElapsedTimer told;
        told.start();
        const std::size_t rows = session->writeCsv(
            text, parameters,
            [&](std::string_view part) {
                file.stream().write(part.data(), std::streamsize(part.size()));
                file.requireWritten();
            },
            [&](std::size_t count) {
                if (told.elapsed() < 100) return;
                told.restart();
                post(
                    job, [this, count] { emit exporting(qint64(count)); }, false);
            });
        file.commit();
        post(
            job, [this, path, rows] { emit exported(path, qint64(rows)); }, true);
    });
}

void SqlRunner::sort(std::shared_ptr<const SqlTable> table, int column, bool descending) {
    submit([this, job = current_ + 1, table = std::move(table), column, descending](SqlSession*) {
        auto order = table->order(column, descending);
        post(
            job, [this, column, descending, order = std::move(order)] { emit sorted(column, descending, order); },
            true);
    });
}

} // namespace kvscope::ui
