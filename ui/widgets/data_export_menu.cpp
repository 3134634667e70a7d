#include "ui/widgets/data_export_menu.h"

#include "ui/frame/export_strip.h"
#include "ui/frame/save_path.h"
#include "ui/frame/workspace.h"

#include <QDir>
#include <QFileInfo>

namespace kvscope::ui {

DataExportMenu::DataExportMenu(Workspace& workspace, Range range, QWidget* over, QWidget* parent)
    : QMenu(tr("Export &Data"), parent), workspace_(workspace), range_(std::move(range)),
      strip_(new ExportStrip(over)) {
    setObjectName(QStringLiteral("exportData"));
    setToolTipsVisible(true);
    connect(strip_, &ExportStrip::finished, this, &DataExportMenu::finished);
    const auto add = [this](const char* name, const QString& title, const QString& help, auto&& chosen) {
        QAction* added = addAction(title, this, chosen);
        added->setObjectName(QLatin1String(name));
        added->setToolTip(help);
        ofRun_.push_back(added);
        return added;
    };
    const QString perfetto =
        tr("Chrome trace events with tracks, counters and arrows; open the file in ui.perfetto.dev");
    add("exportPerfetto", tr("&Timeline for Perfetto…"), perfetto, [this] { choosePerfetto(false); });
    ofRange_.push_back(add("exportPerfettoRange", tr("Marked &Range for Perfetto…"),
                           tr("The steps and spans that touch the range measured in the timeline"),
                           [this] { choosePerfetto(true); }));
    addSeparator();
    const QString spans =
        tr("One row per step, layer, stage, kernel, copy and call, with its arguments where there are any");
    add("exportSpans", tr("&Spans…"), spans, [this] { chooseTable(ExportTable::Spans, false); });
    ofRange_.push_back(add("exportSpansRange", tr("Spans of the &Marked Range…"), spans,
                           [this] { chooseTable(ExportTable::Spans, true); }));
    addSeparator();
    addTable(*this, ExportTable::Selections, tr("Selected &Blocks…"),
             tr("Every block a KV head selected, and whether it was resident"));
    addTable(*this, ExportTable::Steps, tr("St&eps…"), tr("Time, hits, misses and bytes of each step"));
    addTable(*this, ExportTable::Layers, tr("&Layers…"), tr("The same of each layer of each step, with its stages"));
    addTable(*this, ExportTable::Locality, tr("L&ocality…"),
             tr("Selected, kept and missed blocks of each KV head and step"));
    addTable(*this, ExportTable::Transfers, tr("T&ransfers…"), tr("What crossed the link, layer by layer"));
    addTable(*this, ExportTable::Breakdown, tr("Brea&kdown…"), tr("Time per phase, layer and component"));
    addTable(*this, ExportTable::Tokens, tr("Toke&ns…"), tr("What was generated"));
    addTable(*this, ExportTable::Prompt, tr("&Prompt…"), tr("The tokens that were read"));
    addTable(*this, ExportTable::Kernels, tr("&Kernels…"), tr("Kernels of the GPU"));
    addTable(*this, ExportTable::Counters, tr("&Counters…"), tr("What the GPU's counters saw"));
    addTable(*this, ExportTable::Gauges, tr("&Values of Another Tool…"), tr("Counter tracks of an imported timeline"));
    addTable(*this, ExportTable::Flows, tr("&Arrows…"), tr("Which call led to which kernel"));
    connect(this, &QMenu::aboutToShow, this, &DataExportMenu::follow);
    connect(&workspace_, &Workspace::currentChanged, this, &DataExportMenu::follow);
    follow();
}

void DataExportMenu::addTable(QMenu& menu, ExportTable table, const QString& title, const QString& help) {
    QAction* added = menu.addAction(title, this, [this, table] { chooseTable(table, false); });
    added->setToolTip(help);
    ofRun_.push_back(added);
}

void DataExportMenu::follow() {
    const bool open = workspace_.current() != nullptr, marked = open && range_().has_value();
    for (QAction* action : ofRun_) action->setEnabled(open);
    for (QAction* action : ofRange_) action->setEnabled(marked);
    menuAction()->setEnabled(open);
}

std::optional<TracePart> DataExportMenu::part(bool markedOnly) const {
    const OpenRun* run = workspace_.current();
    const std::optional<ExportRange> range = markedOnly ? range_() : std::nullopt;
    if (!run || (markedOnly && !range)) return std::nullopt;
    return TracePart{run->key.path, run->key.runId, range};
}

QString DataExportMenu::suggested(const QString& what) const {
    const OpenRun* run = workspace_.current();
    return QDir::home().filePath(QFileInfo(run->key.path).completeBaseName() + QLatin1Char('-') + what);
}

void DataExportMenu::choosePerfetto(bool markedOnly) {
    if (!part(markedOnly)) return;
    const QString path =
        askSavePath(parentWidget(), markedOnly ? tr("Export the marked range") : tr("Export the timeline"),
                    suggested(markedOnly ? QStringLiteral("range.json") : QStringLiteral("timeline.json")),
                    withCompressed({{tr("Chrome trace events"), QStringLiteral("json")}}));
    if (!path.isEmpty()) writePerfetto(path, markedOnly);
}

void DataExportMenu::chooseTable(ExportTable table, bool markedOnly) {
    if (!part(markedOnly)) return;
    const QString name = QString::fromStdString(exportTableNames()[std::size_t(table)]);
    const QString path = askSavePath(parentWidget(), tr("Export %1").arg(name),
                                     suggested(name + QStringLiteral(".csv")), numberFormats());
    if (!path.isEmpty()) writeTable(table, path, markedOnly);
}

void DataExportMenu::writePerfetto(const QString& path, bool markedOnly) {
    if (const auto chosen = part(markedOnly)) strip_->toFile(perfettoOf(*chosen), path);
}

void DataExportMenu::writeTable(ExportTable table, const QString& path, bool markedOnly) {
    if (const auto chosen = part(markedOnly)) strip_->toFile(tableOf(*chosen, table), path);
}

} // namespace kvscope::ui
