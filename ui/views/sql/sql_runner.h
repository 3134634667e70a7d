// Runs the user's SQL on a thread of its own, so that neither the window nor the other views wait for it.
#pragma once

#include "profiler/sql/sql_session.h"

#include <QElapsedTimer>
#include <QObject>
#include <QString>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace kvscope::ui {

class SqlRunner final : public QObject {
    Q_OBJECT
public:
    explicit SqlRunner(QObject* parent = nullptr);
    ~SqlRunner() override; // stops what runs

    /// Opens another trace; schemaRead or failed follow. What runs on the old one is stopped.
    void setFile(const QString& path);
    const QString& file() const { return file_; }

    /// Runs a query. One job runs at a time: a new one stops the one that runs. Each job ends in exactly one signal:
    /// the one that closes it, `stopped` or `failed`.
    void run(const QString& sql, const SqlParameters& parameters, const SqlLimits& limits = {});
    void exportCsv(const QString& sql, const SqlParameters& parameters, const QString& path);
    void sort(std::shared_ptr<const SqlTable> table, int column, bool descending);
    void stop();

    bool busy() const { return busy_; }
    qint64 elapsedMs() const { return busy_ ? timer_.elapsed() : lastMs_; }

signals:
    void busyChanged(bool busy);
    void schemaRead(const std::vector<kvscope::SqlTableInfo>& schema);
    void began(const QStringList& columns);
    void rowsCame(std::shared_ptr<const kvscope::SqlRows> rows);
    void finished(kvscope::SqlOutcome outcome); // closes run
    void exporting(qint64 rows);
    void exported(const QString& path, qint64 rows);                             // closes exportCsv
    void sorted(int column, bool descending, const std::vector<quint32>& order); // closes sort
    void stopped();
    void failed(const QString& sentence, int offset); // offset: byte of the statement, or -1

private:
    using Work = std::function<void(SqlSession*)>; // null session: the file could not be opened
    void work();
    void submit(Work work);
    /// Called by the worker: `tell` runs on the GUI thread unless a newer query was asked for meanwhile.
    void post(quint64 job, std::function<void()> tell, bool closes);

    QString file_;
    bool busy_ = false;
    quint64 current_ = 0;
    qint64 lastMs_ = 0;
    QElapsedTimer timer_;

    std::mutex mutex_;
    std::condition_variable wake_;
    struct Job {
        quint64 id = 0;
        QString file;
        Work work;
    };
    std::deque<Job> queue_;
    std::shared_ptr<SqlSession> session_; // guarded: interrupt comes from the GUI thread
    QString sessionFile_;                 // worker only
    quint64 wanted_ = 0;                  // guarded: the only job whose work is still wanted
    bool stopping_ = false;
    std::thread thread_;
};

} // namespace kvscope::ui
