#include "ui/widgets/model_page.h"

#include "ui/frame/as_written.h"
#include "ui/frame/dialog_size.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/units.h"
#include "ui/models/format.h"

#include <QFormLayout>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QSignalBlocker>
#include <QSpinBox>
#include <QTableWidget>
#include <QVBoxLayout>

#include <algorithm>

namespace kvscope::ui {
namespace {

QTableWidget* makeTable(const char* name, const QStringList& columns, const QString& accessible) {
    auto* table = new QTableWidget;
    table->setObjectName(QLatin1String(name));
    table->setAccessibleName(accessible);
    table->setColumnCount(int(columns.size()));
    table->setHorizontalHeaderLabels(columns);
    table->verticalHeader()->hide();
    table->horizontalHeader()->setStretchLastSection(true);
    table->setEditTriggers(QAbstractItemView::NoEditTriggers);
    table->setSelectionBehavior(QAbstractItemView::SelectRows);
    table->setAlternatingRowColors(true);
    return table;
}

/// Fills a row with texts. The columns from `firstNumber` on are numbers and right-aligned.
void setRow(QTableWidget* table, int row, const QStringList& texts, int firstNumber) {
    for (int column = 0; column < int(texts.size()); ++column) {
        auto* item = new QTableWidgetItem(texts[column]);
        item->setToolTip(asWritten(texts[column]));
        if (column >= firstNumber) item->setTextAlignment(Qt::AlignRight | Qt::AlignVCenter);
        table->setItem(row, column, item);
    }
}

} // namespace

ModelPage::ModelPage(QWidget* parent)
    : QDialog(parent), title_(new QLabel), facts_(new QFormLayout), context_(new QSpinBox), batch_(new QSpinBox) {
    setObjectName(QStringLiteral("modelPage"));
    setWindowTitle(tr("Model"));
    QFont heading = title_->font();
    heading.setBold(true);
    title_->setFont(heading);
    title_->setObjectName(QStringLiteral("modelTitle"));
    title_->setTextFormat(Qt::PlainText); // the name comes from a file and may look like markup
    facts_->setVerticalSpacing(4);
    facts_->setHorizontalSpacing(16);
    methods_ = makeTable("modelMethods", {tr("Method"), tr("Applies"), tr("Remark")}, tr("Methods"));
    memory_ = makeTable("modelMemory",
                        {tr("Method"), tr("Backend"), tr("Weights"), tr("KV, host tier"), tr("KV, device tier"),
                         tr("Block index"), tr("Slots")},
                        tr("Memory"));
    context_->setObjectName(QStringLiteral("modelContext"));
    context_->setAccessibleName(tr("Context"));
    context_->setSuffix(tr(" tokens"));
    context_->setGroupSeparatorShown(true);
    batch_->setObjectName(QStringLiteral("modelBatch"));
    batch_->setAccessibleName(tr("Batch"));
    batch_->setRange(1, 256);
    batch_->setSuffix(tr(" sequences"));
    auto* chosen = new QHBoxLayout;
    chosen->addWidget(new QLabel(tr("Memory for")));
    chosen->addWidget(context_);
    chosen->addWidget(new QLabel(QStringLiteral("×")));
    chosen->addWidget(batch_);
    chosen->addStretch();
    auto* layout = new QVBoxLayout(this);
    layout->addWidget(title_);
    layout->addLayout(facts_);
    layout->addWidget(methods_, 1);
    layout->addLayout(chosen);
    layout->addWidget(memory_, 1);
    layout->addWidget(
        new MutedLabel(tr("With the checkpoint's own parameters, offloading on. On the CPU both tiers are "
                          "ordinary memory and weights stay in the mapped file.")));
    connect(context_, &QSpinBox::valueChanged, this, &ModelPage::showMemory);
    connect(batch_, &QSpinBox::valueChanged, this, &ModelPage::showMemory);
    resizeOnScreen(*this, {760, 720});
}

void ModelPage::setModel(std::shared_ptr<const Model> model) {
    model_ = std::move(model);
    const ModelSummary summary = summarize(*model_);
    {
        const QSignalBlocker quiet(context_);
        context_->setRange(1, summary.context);
        context_->setSingleStep(std::max(1, summary.context / 16));
        context_->setValue(summary.context);
    }
    title_->setText(
        QStringLiteral("%1 — %2").arg(QString::fromStdString(summary.name), QString::fromStdString(summary.family)));
    showFacts(summary);
    showMethods(summary);
    showMemory();
}

void ModelPage::showFacts(const ModelSummary& s) {
    while (facts_->rowCount() > 0) facts_->removeRow(0);
    const auto add = [&](const QString& label, const QString& text) {
        if (text.isEmpty()) return;
        auto* value = new QLabel(text);
        value->setTextFormat(Qt::PlainText);
        value->setWordWrap(true);
        value->setTextInteractionFlags(Qt::TextSelectableByMouse | Qt::TextSelectableByKeyboard);
        facts_->addRow(label, value);
    };
    const auto words = [](const std::string& text) { return QString::fromStdString(text); };
    add(tr("Architecture"), words(s.architecture));
    add(tr("Layers"), tr("%1, %2 channels").arg(s.layers).arg(formatCount(s.hidden)));
    add(tr("Attention"), words(s.attention));
    add(tr("Feed-forward"), words(s.feedForward));
    add(tr("Positions"), tr("RoPE %1").arg(words(s.rope)));
    add(tr("Context"), tr("%1 tokens").arg(formatCount(s.context)));
    add(tr("Scales"), words(s.scales));
    add(tr("Weights"), tr("%1, %2 on disk, %3 read per token")
                           .arg(words(s.weights), formatBytes(s.fileBytes), formatBytes(s.weightBytesPerToken)));
    add(tr("KV cache"), tr("%1 per token in float32 (CPU), %2 in bf16 (GPU)")
                            .arg(formatBytes(s.kvBytesPerTokenCpu), formatBytes(s.kvBytesPerTokenGpu)));
    add(tr("Eviction head"), s.evictionHead ? tr("yes: NOSA and DMA apply") : tr("none"));
    if (s.forecastHeads) add(tr("Forecast heads"), tr("yes (SparDA)"));
    add(tr("GPU backend"), s.gpuProblem.empty() ? tr("runs this model") : words(s.gpuProblem));
    for (const std::string& note : s.notes) add(tr("Note"), words(note));
}

void ModelPage::showMethods(const ModelSummary& s) {
    methods_->setRowCount(int(s.methods.size()));
    for (int row = 0; row < int(s.methods.size()); ++row) {
        const MethodFit& fit = s.methods[std::size_t(row)];
        setRow(
            methods_, row,
            {QString::fromStdString(fit.title), fit.applies ? tr("yes") : tr("no"), QString::fromStdString(fit.remark)},
            3);
    }
    methods_->resizeColumnsToContents();
}

void ModelPage::showMemory() {
    if (!model_) return;
    const auto needs = memoryNeeds(*model_, context_->value(), batch_->value());
    memory_->setRowCount(int(needs.size()));
    for (int row = 0; row < int(needs.size()); ++row) {
        const SessionMemory& need = needs[std::size_t(row)];
        setRow(memory_, row,
               {QString::fromStdString(findMethod(need.method).title),
                need.backend == Backend::Cuda ? tr("GPU") : tr("CPU"),
                formatBytes(need.hostWeightBytes + need.deviceWeightBytes), formatBytes(need.hostKvBytes),
                formatBytes(need.deviceKvBytes), formatBytes(need.indexBytes),
                need.blockSlots == 0 ? tr("all resident") : formatCount(need.blockSlots)},
               2);
    }
    memory_->resizeColumnsToContents();
}

} // namespace kvscope::ui
