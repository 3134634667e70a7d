#include "ui/views/compare_ways.h"

#include <QCoreApplication>

namespace kvscope::ui {

namespace {
constexpr std::size_t kMostRuns = 3;
constexpr qsizetype kLongestName = 40;
QString tr(const char* text) { return QCoreApplication::translate("CompareView", text); }
} // namespace

std::vector<EmptyAction> waysToCompare(const QWidget& from, Workspace& workspace) {
    std::vector<EmptyAction> ways;
    for (const OpenRun& run : workspace.runs()) {
        if (ways.size() == kMostRuns || (workspace.current() && run.key == workspace.current()->key)) continue;
        QString name = QString::fromStdString(run.row.name);
        if (name.size() > kLongestName) name = name.left(kLongestName - 1) + QStringLiteral("…");
        ways.push_back({tr("Compare with %1").arg(name), [&workspace, key = run.key] { workspace.setCompare(key); }});
    }
    ways.push_back(windowAction(from, "open", tr("Open a trace…")));
    return ways;
}

} // namespace kvscope::ui
