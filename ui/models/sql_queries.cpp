#include "ui/models/sql_queries.h"

#include <QCoreApplication>
#include <QDir>
#include <QFileInfo>
#include <QSettings>
#include <QStandardPaths>

#include <algorithm>

namespace kvscope::ui {

namespace {

QString tr(const char* text) { return QCoreApplication::translate("SqlQueries", text); }

std::vector<SavedQuery> builtIn() {
    const auto query = [](const char* name, const char* sql) {
        return SavedQuery{tr(name), QString::fromUtf8(sql), true};
    };
    return {
        query("Step times, hits and bytes",
              "SELECT step, duration_ns / 1e6 AS ms, hits, misses, h2d_bytes, exposed_ns / 1e6 AS exposed_ms\n"
              "FROM v_step WHERE run_id = :run_id AND phase = 'decode' ORDER BY step"),
        query("Slowest decode steps and what they waited for",
              "SELECT step, duration_ns / 1e6 AS ms, misses, h2d_bytes / 1048576.0 AS mib, exposed_ns / 1e6 AS "
              "exposed_ms,\n"
              "       opens_block\n"
              "FROM v_step WHERE run_id = :run_id AND phase = 'decode' ORDER BY duration_ns DESC LIMIT 50"),
        query("Locality by layer",
              "SELECT layer, avg(locality) AS locality, min(locality) AS least, count(locality) AS selections\n"
              "FROM v_locality WHERE run_id = :run_id AND NOT opens_block GROUP BY layer ORDER BY layer"),
        query("Hit rate by layer and KV head",
              "SELECT layer, kv_head, 1.0 * sum(hits) / nullif(sum(hits + misses), 0) AS hit_rate, sum(misses) AS "
              "misses\n"
              "FROM v_locality WHERE run_id = :run_id GROUP BY layer, kv_head ORDER BY hit_rate"),
        query("Time by component",
              "SELECT component, sum(total_ns) / 1e6 AS ms,\n"
              "       100.0 * sum(total_ns) / sum(sum(total_ns)) OVER () AS percent\n"
              "FROM v_breakdown WHERE run_id = :run_id AND phase = 'decode' GROUP BY component ORDER BY ms DESC"),
        query("Link bandwidth step by step",
              "SELECT step, sum(bytes) AS bytes, sum(duration_ns) / 1e3 AS us,\n"
              "       1.0 * sum(bytes) / nullif(sum(duration_ns), 0) AS gb_per_s\n"
              "FROM v_transfer WHERE run_id = :run_id AND direction = 'h2d' GROUP BY step ORDER BY step"),
        query("Layers of the cursor's step",
              "SELECT layer, duration_ns / 1e3 AS us, selected, hits, misses, exposed_ns / 1e3 AS exposed_us\n"
              "FROM v_layer WHERE run_id = :run_id AND step = :step ORDER BY layer"),
        query(
            "Text around the cursor's step",
            "SELECT step, position, token_id, text FROM v_token\n"
            "WHERE run_id = :run_id AND seq = :seq AND step BETWEEN :step - 20 AND :step + 20 ORDER BY step, position"),
        query(
            "Kernels and copies by total time",
            "SELECT track, name, count(*) AS calls, sum(duration_ns) / 1e6 AS ms, avg(duration_ns) / 1e3 AS mean_us,\n"
            "       max(duration_ns) / 1e3 AS longest_us\n"
            "FROM v_span WHERE run_id = :run_id AND track <> 'host' GROUP BY track, name ORDER BY ms DESC"),
        query("Runs of this file",
              "SELECT run_id, name, method, model, status, steps, level, timing, dropped_steps FROM runs"),
    };
}

} // namespace

SqlQueries::SqlQueries(const QString& file)
    : file_(file.isEmpty() ? QDir(QStandardPaths::writableLocation(QStandardPaths::GenericConfigLocation))
                                 .filePath(QStringLiteral("kvscope/queries.ini"))
                           : file),
      queries_(builtIn()) {
    QSettings settings(file_, QSettings::IniFormat);
    const int count = settings.beginReadArray(QStringLiteral("queries"));
    for (int i = 0; i < count; ++i) {
        settings.setArrayIndex(i);
        const QString name = settings.value(QStringLiteral("name")).toString();
        if (!name.isEmpty()) queries_.push_back({name, settings.value(QStringLiteral("sql")).toString(), false});
    }
    settings.endArray();
}

QString SqlQueries::save(const QString& name, const QString& sql) {
    const QString wanted = name.trimmed();
    if (wanted.isEmpty()) return tr("A saved query needs a name.");
    if (sql.trimmed().isEmpty()) return tr("There is no query to save.");
    const auto known =
        std::find_if(queries_.begin(), queries_.end(), [&](const SavedQuery& query) { return query.name == wanted; });
    if (known != queries_.end() && known->builtIn)
        return tr("“%1” comes with the program: choose another name.").arg(wanted);
    if (known != queries_.end())
        known->sql = sql;
    else
        queries_.push_back({wanted, sql, false});
    const auto own =
        std::find_if(queries_.begin(), queries_.end(), [](const SavedQuery& query) { return !query.builtIn; });
    std::sort(own, queries_.end(),
              [](const SavedQuery& a, const SavedQuery& b) { return a.name.localeAwareCompare(b.name) < 0; });
    return write();
}

QString SqlQueries::remove(const QString& name) {
    std::erase_if(queries_, [&](const SavedQuery& query) { return !query.builtIn && query.name == name; });
    return write();
}

QString SqlQueries::write() {
    QDir().mkpath(QFileInfo(file_).path());
    QSettings settings(file_, QSettings::IniFormat);
    settings.remove(QStringLiteral("queries"));
    settings.beginWriteArray(QStringLiteral("queries"));
    int index = 0;
    for (const SavedQuery& query : queries_) {
        if (query.builtIn) continue;
        settings.setArrayIndex(index++);
        settings.setValue(QStringLiteral("name"), query.name);
        settings.setValue(QStringLiteral("sql"), query.sql);
    }
    settings.endArray();
    settings.sync();
    if (settings.status() != QSettings::NoError)
        return tr("%1 could not be written; is its folder writable?").arg(file_);
    return {};
}

} // namespace kvscope::ui
