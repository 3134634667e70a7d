#include "ui/views/compare/compare_ways.h"

#include "base/error.h"
#include "ui/frame/units.h"

#include <QCoreApplication>
#include <QStringList>

#include <algorithm>

namespace kvscope::ui {

namespace {
constexpr std::size_t kMostRuns = 3;
constexpr qsizetype kLongestName = 40;
QString tr(const char* text) { return QCoreApplication::translate("CompareView", text); }
} // namespace

std::vector<const OpenRun*> othersOf(const Workspace& workspace) {
    std::vector<const OpenRun*> others = workspace.sides();
    if (!others.empty()) others.erase(others.begin());
    return others;
}

int commonSequences(const Workspace& workspace) {
    int common = 0;
    for (const OpenRun* run : workspace.sides())
        if (run->row.sequences > 0) common = common == 0 ? run->row.sequences : std::min(common, run->row.sequences);
    return std::max(common, 1);
}

bool someGrow(const Workspace& workspace) {
    const auto sides = workspace.sides();
    return std::any_of(sides.begin(), sides.end(), [](const OpenRun* run) { return isGrowing(*run); });
}

bool notThereYet(const OpenRun& run) { return isGrowing(run) && run.row.layers == 0; }

QString waitsFor(const Workspace& workspace) {
    const auto sides = workspace.sides();
    for (std::size_t place = 0; place < sides.size(); ++place)
        if (notThereYet(*sides[place])) return tr("%1 has no decode step yet").arg(letteredName(place, workspace));
    return {};
}

QString soFarNote(const Workspace& workspace) {
    const auto sides = workspace.sides();
    QStringList parts;
    for (std::size_t place = 0; place < sides.size(); ++place) {
        if (!isGrowing(*sides[place])) continue;
        const int steps = sides[place]->row.prompts.decodesBelow(sides[place]->row.steps);
        parts << (steps == 1 ? tr("1 decode step of %1").arg(runLetter(place))
                             : tr("%1 decode steps of %2").arg(formatCount(steps), runLetter(place)));
    }
    if (parts.isEmpty()) return {};
    return tr("So far: %1, still recording.").arg(parts.join(tr(" and ")));
}

QString glanceNote(int steps) {
    return tr("A first look at %1 evenly spread decode steps; the others are not read yet.").arg(formatCount(steps));
}

NumberWriter refusedFirstLook() {
    return [](NumberSink&) {
        throw Error(ErrorKind::BadInput,
                    "only a first look at the steps was read, and numbers to keep are those of all",
                    "wait until they are read, or press Read on where the reading was stopped");
    };
}

std::vector<EmptyAction> waysToCompare(const QWidget& from, Workspace& workspace) {
    std::vector<EmptyAction> ways;
    for (const OpenRun& run : workspace.runs()) {
        if (ways.size() == kMostRuns || (workspace.current() && run.key == workspace.current()->key)) continue;
        QString name = runName(run, workspace.runs());
        if (name.size() > kLongestName) name = name.left(kLongestName - 1) + QStringLiteral("…");
        ways.push_back({tr("Compare with %1").arg(name), [&workspace, key = run.key] { workspace.setCompare(key); }});
    }
    ways.push_back(windowAction(from, "open", tr("Open a trace…")));
    return ways;
}

} // namespace kvscope::ui
