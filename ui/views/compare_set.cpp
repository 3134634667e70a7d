#include "ui/views/compare_set.h"

#include "ui/look/theme.h"

#include <array>

namespace kvscope::ui {

CompareSet::CompareSet(Workspace& workspace, QObject* parent) : QObject(parent), workspace_(workspace) {
    connect(&workspace_, &Workspace::compareChanged, this, &CompareSet::changed);
    connect(&workspace_, &Workspace::runsChanged, this, [this] {
        const auto gone = std::erase_if(more_, [this](const RunKey& key) { return !workspace_.find(key); });
        if (gone > 0) emit changed();
    });
}

std::vector<const OpenRun*> CompareSet::others() const {
    std::vector<const OpenRun*> runs;
    const OpenRun *a = workspace_.current(), *b = workspace_.compare();
    if (!a || !b) return runs;
    runs.push_back(b);
    for (const RunKey& key : more_)
        if (const OpenRun* run = workspace_.find(key); run && !(run->key == a->key) && !(run->key == b->key))
            runs.push_back(run);
    return runs;
}

bool CompareSet::contains(const RunKey& key) const {
    const auto runs = others();
    return std::any_of(runs.begin(), runs.end(), [&](const OpenRun* run) { return run->key == key; });
}

void CompareSet::set(const RunKey& key, bool compared) {
    if (compared == contains(key)) return;
    const OpenRun* b = workspace_.compare();
    if (compared) {
        if (!b) return workspace_.setCompare(key); // says so itself
        more_.push_back(key);
    } else if (b && b->key == key) {
        const auto runs = others();
        const auto next = runs.size() > 1 ? std::optional(runs[1]->key) : std::nullopt;
        if (next) std::erase(more_, *next);
        return workspace_.setCompare(next);
    } else {
        std::erase(more_, key);
    }
    emit changed();
}

QString runLetter(std::size_t index) {
    return index < 26 ? QString(QChar(char16_t(u'A' + index))) : QStringLiteral("#%1").arg(index + 1);
}

QColor runColour(std::size_t index) {
    const Theme& theme = Theme::current();
    if (index < 2) return index == 0 ? theme.runA : theme.runB;
    static constexpr std::array<std::size_t, 8> kOrder{6, 8, 2, 9, 5, 3, 7, 10}; // told apart most easily
    return theme.component[kOrder[(index - 2) % kOrder.size()]];
}

} // namespace kvscope::ui
