#include "ui/frame/broken_rules.h"

#include "ui/frame/run_checks.h"
#include "ui/frame/units.h"

#include <QObject>
#include <QStringList>

#include <algorithm>

namespace kvscope::ui {

namespace {

QStringList concerned(const RunCheck& check) {
    QStringList names;
    for (int i = 0; i < kConcernCount; ++i)
        if (const std::string_view name = nameOf(Concern(i)); check.concerns(Concern(i)))
            names << QString::fromUtf8(name.data(), qsizetype(name.size()));
    return names;
}

} // namespace

QString brokenText(const Workspace& workspace, const RunKey& run) {
    const std::int64_t rows = RunChecks::of(workspace).violations(run);
    return rows == 0   ? QString()
           : rows == 1 ? QObject::tr("1 row breaks a rule")
                       : QObject::tr("%1 rows break rules").arg(formatCount(rows));
}

QString violationText(const Workspace& workspace, const RunKey& run) {
    const RunCheck* check = RunChecks::of(workspace).find(run);
    if (check == nullptr || check->violations() == 0) return {};
    const auto rules = std::count_if(check->rules.begin(), check->rules.end(),
                                     [](const RuleResult& rule) { return rule.violations > 0; });
    const QString broken = check->violations() == 1
                               ? QObject::tr("1 row breaks a rule of the trace format.")
                               : QObject::tr("%1 rows break %2 of the trace format.")
                                     .arg(formatCount(check->violations()),
                                          rules == 1 ? QObject::tr("a rule") : QObject::tr("%1 rules").arg(rules));
    return broken + QLatin1Char(' ') +
           QObject::tr("Numbers about %1 mean nothing, and are left out where they can be.")
               .arg(concerned(*check).join(QStringLiteral(", ")));
}

QString whyUnknown(const Workspace& workspace, const RunKey& run, const QString& otherwise) {
    if (RunChecks::of(workspace).violations(run) == 0) return otherwise;
    return QObject::tr("Rows of this run break rules of the trace format, so that these numbers mean nothing. The mark "
                       "in the status bar lists the rows.");
}

} // namespace kvscope::ui
