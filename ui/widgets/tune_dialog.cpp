#include "ui/widgets/tune_dialog.h"

#include "base/error.h"
#include "base/whole_file.h"
#include "profiler/tune/tune_text.h"
#include "ui/frame/as_written.h"
#include "ui/frame/save_path.h"
#include "ui/frame/small_widgets.h"
#include "ui/look/theme.h"
#include "ui/models/format.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/widgets/form_helpers.h"

#include <QApplication>
#include <QCheckBox>
#include <QClipboard>
#include <QComboBox>
#include <QFileDialog>
#include <QFormLayout>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLineEdit>
#include <QProgressBar>
#include <QPushButton>
#include <QSpinBox>
#include <QTableWidget>
#include <QVBoxLayout>

#include <algorithm>
#include <cmath>
#include <ostream>

namespace kvscope::ui {
namespace {

enum Column { Place, Name, Blocks, Memory, PredictedMs, MeasuredMs, PredictedBytes, MeasuredBytes, Quality, Columns };
constexpr int kFileItem = 2; // of the prompt sets

QDoubleSpinBox* amountField(const char* name, double most, int decimals, double value, const QString& help) {
    auto* spin = named(new QDoubleSpinBox, name, help);
    spin->setRange(0, most);
    spin->setDecimals(decimals);
    spin->setValue(value);
    return spin;
}

QLineEdit* listField(const char* name, const QString& otherwise, const QString& help) {
    auto* edit = named(new QLineEdit, name, help);
    edit->setPlaceholderText(otherwise);
    return edit;
}

/// "512, 1024" as numbers. @throws Error(BadInput) naming what is none
std::vector<int> numbersOf(const QLineEdit& edit, const QString& what) {
    std::vector<int> numbers;
    if (edit.text().trimmed().isEmpty()) return numbers;
    for (const QString& part : edit.text().split(QLatin1Char(','))) {
        bool valid = false;
        numbers.push_back(part.trimmed().toInt(&valid));
        if (!valid || numbers.back() < 1)
            throw Error(ErrorKind::BadInput,
                        QObject::tr("%1: '%2' is no number of tokens").arg(what, part.trimmed()).toStdString(),
                        "write numbers with commas between them");
    }
    return numbers;
}

QString kibibytesText(double bytes) {
    return std::isfinite(bytes) ? QString::number(bytes / 1024, 'f', 1) : QStringLiteral("–");
}

QString millisecondsText(double ns) {
    return std::isfinite(ns) ? QString::number(ns / 1e6, 'f', 3) : QStringLiteral("–");
}

double shareOf(const TuneRow& row) { return row.measured->quality.value(); }
double stepMs(const TuneRow& row) { return row.measured->sums.stepNs() / 1e6; }

} // namespace

TuneDialog::TuneDialog(QWidget* parent) : QDialog(parent) {
    setObjectName(QStringLiteral("tuneDialog"));
    setWindowTitle(tr("Tune"));
    auto* columns = new QHBoxLayout;
    auto *left = new QVBoxLayout, *right = new QVBoxLayout;
    makeOptions(left);
    makePlot(right);
    makeTable(right);
    columns->addLayout(left);
    columns->addLayout(right, 1);
    columns->setSpacing(16);
    auto* layout = new QVBoxLayout(this);
    layout->setContentsMargins(16, 14, 16, 14);
    layout->setSpacing(12);
    layout->addLayout(columns, 1);
    makeFooter(layout);
    resize(1180, 680);
    connect(&job_, &TuningJob::advanced, this, [this](double fraction, const QString& what) {
        bar_->setValue(int(std::lround(1000 * fraction)));
        what_->setText(what);
    });
    connect(&job_, &TuningJob::changed, this, [this](const TuneResult& result) { showResult(result, false); });
    connect(&job_, &TuningJob::finished, this, [this](const TuneResult& result) { showResult(result, true); });
    connect(&job_, &TuningJob::cancelled, this, [this] {
        what_->setText(tr("Cancelled before anything was measured."));
        bar_->setValue(0);
        refresh();
    });
    connect(&job_, &TuningJob::failed, this, [this](const QString& sentence) {
        what_->clear();
        bar_->setValue(0);
        message_->show(InlineMessage::Kind::Error, sentence);
        refresh();
    });
    applyTheme(Theme::current());
    refresh();
}

void TuneDialog::makeOptions(QVBoxLayout* layout) {
    title_ = new QLabel;
    title_->setObjectName(QStringLiteral("tuneTitle"));
    title_->setTextFormat(Qt::PlainText);
    QFont bold = title_->font();
    bold.setBold(true);
    title_->setFont(bold);
    layout->addWidget(title_);
    auto* form = new QFormLayout;
    const PromptSetSize size;
    const TuneRequest usual;
    memory_ = amountField("tuneMemory", 1e7, 1, 0, tr("Device memory for the KV cache of all sequences"));
    memory_->setSuffix(QStringLiteral(" MiB"));
    memory_->setSpecialValueText(tr("no limit"));
    form->addRow(tr("Memory"), memory_);
    link_ = named(new QComboBox, "tuneLink", tr("Over which blocks travel; modelled on the CPU"));
    link_->addItem(QStringLiteral("PCIe 5 x16"), QStringLiteral("pcie5"));
    link_->addItem(QStringLiteral("PCIe 4 x16"), QStringLiteral("pcie4"));
    link_->addItem(tr("Other…"));
    linkGbps_ = amountField("tuneLinkGbps", 1e5, 1, 55.5, tr("1e9 bytes per second"));
    linkGbps_->setSuffix(QStringLiteral(" GB/s"));
    linkGbps_->setMinimum(0.1);
    link_->setAccessibleName(tr("Link"));
    linkGbps_->setAccessibleName(tr("Bandwidth of the link"));
    auto* linkRow = new QHBoxLayout;
    linkRow->addWidget(link_, 1);
    linkRow->addWidget(linkGbps_);
    form->addRow(tr("Link"), linkRow);
    batch_ = countField("tuneBatch", 1, 256, usual.batch, tr("Sequences decoded together"));
    form->addRow(tr("Batch"), batch_);
    prompts_ = named(new QComboBox, "tunePrompts", tr("The prompts on which the answers are judged"));
    prompts_->addItem(tr("Needles"), QStringLiteral("needles"));
    prompts_->addItem(tr("Document"), QStringLiteral("document"));
    prompts_->addItem(tr("File…"));
    form->addRow(tr("Prompts"), prompts_);
    count_ = countField("tuneCount", 1, 10'000, size.prompts, tr("Prompts of the set"));
    form->addRow(tr("Number"), count_);
    context_ = countField("tuneContext", 16, 1 << 22, size.tokens, tr("Tokens of each prompt"));
    form->addRow(tr("Context"), context_);
    newTokens_ = countField("tuneNewTokens", 2, 100'000, usual.newTokens, tr("Generated for every prompt"));
    form->addRow(tr("New tokens"), newTokens_);
    measure_ = named(new QComboBox, "tuneMeasure",
                     tr("Prompts whose text begins with the answer, or tokens that full attention chooses too"));
    measure_->addItem(tr("Prompts answered"), int(QualityMeasure::Answered));
    measure_->addItem(tr("Tokens as full attention"), int(QualityMeasure::Agreement));
    form->addRow(tr("Judged by"), measure_);
    floor_ = amountField("tuneFloor", 100, 0, 100 * usual.floor, tr("The least share that is good enough"));
    floor_->setSuffix(QStringLiteral(" %"));
    sure_ = named(new QCheckBox(tr("surely")), "tuneSure",
                  tr("The lower end of the share's 95 % interval must reach the floor"));
    floor_->setAccessibleName(tr("Least share of good answers"));
    auto* floorRow = new QHBoxLayout;
    floorRow->addWidget(floor_, 1);
    floorRow->addWidget(sure_);
    form->addRow(tr("At least"), floorRow);
    methods_ = listField("tuneMethods", tr("all that the model has"), tr("Names with commas, such as full, nosa"));
    form->addRow(tr("Methods"), methods_);
    budgets_ = listField("tuneBudgets", tr("half, once, twice the own"), tr("Tokens attended, with commas"));
    form->addRow(tr("Budgets"), budgets_);
    blocks_ = listField("tuneBlocks", tr("each method's own"), tr("Tokens of a block, with commas"));
    form->addRow(tr("Block sizes"), blocks_);
    runs_ = countField("tuneRuns", 1, 10'000, usual.runs, tr("How many of the best predicted are run"));
    form->addRow(tr("Run the best"), runs_);
    more_ = countField("tuneMore", 0, 10'000, usual.more, tr("Others that are run while none of these is good enough"));
    form->addRow(tr("then up to"), more_);
    backend_ = named(new QComboBox, "tuneBackend", tr("Where the candidates run"));
    backend_->addItem(tr("CPU"), int(Backend::Cpu));
    backend_->addItem(tr("NVIDIA GPU"), int(Backend::Cuda));
    form->addRow(tr("On"), backend_);
    layout->addLayout(form);
    layout->addStretch();
    connect(link_, &QComboBox::currentIndexChanged, this, &TuneDialog::refresh);
    connect(prompts_, &QComboBox::activated, this, [this](int index) {
        if (index == kFileItem) chooseFile();
    });
    connect(prompts_, &QComboBox::currentIndexChanged, this, [this] {
        const bool needles = prompts_->currentIndex() == 0;
        measure_->setCurrentIndex(
            measure_->findData(int(needles ? QualityMeasure::Answered : QualityMeasure::Agreement)));
        refresh();
    });
}

void TuneDialog::makePlot(QVBoxLayout* layout) {
    plot_ = new PlotCanvas;
    plot_->setObjectName(QStringLiteral("tunePlot"));
    plot_->setAccessibleName(tr("Quality against the time of a step"));
    plot_->setMinimumSize(480, 200);
    legend_ = new LegendStrip(plot_);
    plot_->plotLayout()->addElement(0, 0, legend_);
    plot_->setSelectsSteps(false);
    QCPAxisRect* rect = plot_->addPanel(false);
    QCPAxis *x = rect->axis(QCPAxis::atBottom), *y = rect->axis(QCPAxis::atLeft);
    x->setLabel(tr("ms per step"));
    y->setLabel(tr("Good answers"));
    plot_->setFullY(0, {-0.05, 1.05});
    floorLine_ = new QCPGraph(x, y);
    front_ = new QCPGraph(x, y);
    front_->setLineStyle(QCPGraph::lsStepLeft);
    predicted_ = new QCPGraph(x, y);
    measured_ = new QCPGraph(x, y);
    chosen_ = new QCPGraph(x, y);
    intervals_ = new QCPErrorBars(x, y);
    intervals_->setDataPlottable(measured_);
    for (QCPGraph* graph : {predicted_, measured_, chosen_}) graph->setLineStyle(QCPGraph::lsNone);
    layout->addWidget(plot_, 1);
}

void TuneDialog::makeTable(QVBoxLayout* layout) {
    table_ = new QTableWidget(0, Columns);
    table_->setObjectName(QStringLiteral("tuneTable"));
    table_->setAccessibleName(tr("Candidates, fastest predicted first"));
    table_->setHorizontalHeaderLabels({tr("#"), tr("Candidate"), tr("Blocks"), tr("MiB"), tr("ms/step\npredicted"),
                                       tr("ms/step\nmeasured"), tr("KiB/token\npredicted"), tr("KiB/token\nmeasured"),
                                       tr("Good answers\n(95 % interval)")});
    table_->verticalHeader()->hide();
    table_->setWordWrap(false);
    table_->setShowGrid(false);
    table_->verticalHeader()->setDefaultSectionSize(table_->fontMetrics().height() + 6);
    table_->horizontalHeader()->setSectionResizeMode(QHeaderView::ResizeToContents);
    table_->horizontalHeader()->setSectionResizeMode(Name, QHeaderView::Stretch);
    table_->setSelectionBehavior(QAbstractItemView::SelectRows);
    table_->setSelectionMode(QAbstractItemView::SingleSelection);
    table_->setEditTriggers(QAbstractItemView::NoEditTriggers);
    table_->setMinimumHeight(180);
    connect(table_, &QTableWidget::itemSelectionChanged, this, &TuneDialog::refresh);
    layout->addWidget(table_, 1);
    leftOut_ = new MutedLabel;
    leftOut_->setObjectName(QStringLiteral("tuneLeftOut"));
    layout->addWidget(leftOut_);
}

void TuneDialog::makeFooter(QVBoxLayout* layout) {
    verdict_ = new MeasuredLabel;
    verdict_->setObjectName(QStringLiteral("tuneVerdict"));
    verdict_->setWordWrap(true);
    verdict_->setTextInteractionFlags(Qt::TextSelectableByMouse);
    verdict_->hide();
    layout->addWidget(verdict_);
    message_ = new InlineMessage;
    message_->setObjectName(QStringLiteral("tuneMessage"));
    layout->addWidget(message_);
    bar_ = new QProgressBar;
    bar_->setObjectName(QStringLiteral("tuneProgress"));
    bar_->setAccessibleName(tr("Progress of the tuning"));
    bar_->setRange(0, 1000);
    bar_->setTextVisible(false);
    bar_->setFixedHeight(6);
    layout->addWidget(bar_);
    what_ = new MutedLabel;
    what_->setObjectName(QStringLiteral("tuneWhat"));
    start_ = named(new QPushButton(tr("Tune")), "tuneStart", {});
    start_->setDefault(true);
    cancel_ = named(new QPushButton(tr("Cancel")), "tuneCancel", tr("Stop; what was measured stays"));
    run_ = named(new QPushButton(tr("Run This")), "tuneRun", tr("Decode with the chosen row and record it"));
    copy_ = named(new QPushButton(tr("Copy Command")), "tuneCopy", tr("The command line of the chosen row"));
    save_ = named(new QPushButton(tr("Save JSON…")), "tuneSave", tr("All candidates, their numbers and the choice"));
    connect(start_, &QPushButton::clicked, this, &TuneDialog::start);
    connect(cancel_, &QPushButton::clicked, &job_, &TuningJob::cancel);
    connect(run_, &QPushButton::clicked, this, [this] {
        if (const auto row = chosenRow()) emit runRequested(*result_, *row);
    });
    connect(copy_, &QPushButton::clicked, this, [this] {
        const auto row = chosenRow();
        if (!row) return;
        QApplication::clipboard()->setText(QString::fromStdString(tuneCommand(*result_, result_->rows[*row])));
        what_->setText(tr("The command was copied."));
    });
    connect(save_, &QPushButton::clicked, this, [this] {
        const QString path = askSavePath(this, tr("Save the tuning"), QStringLiteral("tune.json"), {{"JSON", "json"}});
        if (path.isEmpty() || !result_) return;
        const std::string text = tuneJson(*result_);
        const std::string problem = writeWholeFile(path.toStdString(), [&](std::ostream& out) { out << text; });
        if (problem.empty())
            what_->setText(tr("Saved."));
        else
            message_->show(InlineMessage::Kind::Error,
                           tr("The file was not written: %1.").arg(QString::fromStdString(problem)));
    });
    auto* row = new QHBoxLayout;
    row->addWidget(what_, 1);
    for (QPushButton* button : {save_, copy_, run_, cancel_, start_}) row->addWidget(button);
    layout->addLayout(row);
}

void TuneDialog::setModel(const QString& nameOrPath, std::shared_ptr<const Model> model) {
    name_ = nameOrPath;
    model_ = std::move(model);
    if (model_) context_->setMaximum(std::max(16, model_->config().maxPositions - newTokens_->value()));
    refresh();
}

void TuneDialog::chooseFile() {
    const QString file = QFileDialog::getOpenFileName(this, tr("Prompts, one JSON object a line"), {},
                                                      tr("JSON lines (*.jsonl *.json);;All files (*)"));
    if (file.isEmpty()) return prompts_->setCurrentIndex(0);
    prompts_->setItemData(kFileItem, file);
    prompts_->setItemText(kFileItem, QFileInfo(file).fileName());
    refresh();
}

TuningTask TuneDialog::task() const {
    TuningTask task;
    TuneRequest& request = task.request;
    request.modelName = name_.toStdString();
    request.deviceBytes = std::int64_t(memory_->value() * 1048576);
    const QString link = link_->currentData().toString();
    request.link = Link::parse((link.isEmpty() ? QString::number(linkGbps_->value()) : link).toStdString());
    request.backend = Backend(backend_->currentData().toInt());
    request.batch = batch_->value();
    request.newTokens = newTokens_->value();
    request.measure = QualityMeasure(measure_->currentData().toInt());
    request.floor = floor_->value() / 100;
    request.sure = sure_->isChecked();
    request.runs = runs_->value();
    request.more = more_->value();
    for (const QString& method : methods_->text().split(QLatin1Char(','), Qt::SkipEmptyParts))
        request.grid.methods.push_back(method.trimmed().toStdString());
    request.grid.budgets = numbersOf(*budgets_, tr("Budgets"));
    request.grid.blockSizes = numbersOf(*blocks_, tr("Block sizes"));
    task.prompts = prompts_->currentData().toString().toStdString();
    task.size.tokens = context_->value();
    task.size.prompts = count_->value();
    return task;
}

std::optional<std::size_t> TuneDialog::chosenRow() const {
    const int row = table_->currentRow();
    if (!result_ || row < 0 || std::size_t(row) >= result_->rows.size()) return std::nullopt;
    return std::size_t(row);
}

void TuneDialog::refresh() {
    const bool running = job_.isRunning();
    title_->setText(model_ ? tr("What to decode %1 with").arg(QString::fromStdString(model_->name()))
                           : tr("No model is loaded"));
    for (QWidget* field :
         std::initializer_list<QWidget*>{memory_, link_, batch_, prompts_, newTokens_, measure_, floor_, sure_,
                                         methods_, budgets_, blocks_, runs_, more_, backend_})
        field->setEnabled(!running);
    linkGbps_->setEnabled(!running);
    linkGbps_->setVisible(link_->currentData().toString().isEmpty());
    const bool ofFile = prompts_->currentIndex() == kFileItem;
    count_->setEnabled(!running && !ofFile);
    context_->setEnabled(!running && !ofFile);
    start_->setEnabled(!running && model_ && !prompts_->currentData().toString().isEmpty());
    start_->setToolTip(model_ ? tr("Predict all candidates and run the best")
                              : tr("Choose a model in the session form"));
    cancel_->setEnabled(running);
    const bool chosen = chosenRow().has_value();
    run_->setEnabled(chosen && !running);
    copy_->setEnabled(chosen);
    save_->setEnabled(result_.has_value() && !running);
}

void TuneDialog::start() {
    if (!model_ || job_.isRunning()) return;
    message_->clear();
    verdict_->hide();
    try {
        job_.start(model_, task());
    } catch (const Error& error) {
        message_->show(InlineMessage::Kind::Error, QString::fromStdString(oneLine(error)));
        return;
    }
    result_.reset();
    table_->setRowCount(0);
    leftOut_->clear();
    fillPlot();
    bar_->setValue(0);
    refresh();
}

void TuneDialog::showResult(const TuneResult& result, bool done) {
    result_ = result;
    fillTable();
    fillPlot();
    if (done) {
        bar_->setValue(result.cancelled ? 0 : 1000);
        what_->setText(result.cancelled ? tr("Cancelled.") : tr("Done."));
        verdict_->setText(QString::fromStdString(tuneVerdict(result)));
        verdict_->show();
        if (result.recommended) table_->selectRow(int(*result.recommended));
    }
    refresh();
}

void TuneDialog::fillTable() {
    const int chosen = table_->currentRow();
    table_->setRowCount(int(result_->rows.size()));
    for (int i = 0; i < table_->rowCount(); ++i) {
        const TuneRow& row = result_->rows[std::size_t(i)];
        const TuneCandidate& candidate = row.candidate;
        const bool recommended = result_->recommended == std::size_t(i);
        const auto set = [&](int column, const QString& text, bool isNumber = true) {
            auto* item = new QTableWidgetItem(text);
            item->setTextAlignment(Qt::AlignVCenter | (isNumber ? Qt::AlignRight : Qt::AlignLeft));
            QFont font = item->font();
            font.setBold(recommended);
            item->setFont(font);
            if (row.measured && !row.reaches) item->setForeground(Theme::current().mutedText);
            table_->setItem(i, column, item);
        };
        set(Place, QString::number(i + 1));
        set(Name, QString::fromStdString(candidate.name()), false);
        table_->item(i, Name)->setToolTip(
            asWritten(tr("%1\nPredicted by %2")
                          .arg(QString::fromStdString(candidate.name()), QString::fromStdString(row.predicted.from))));
        set(Blocks,
            !candidate.travels ? tr("device")
            : candidate.deviceSlots
                ? (*candidate.deviceSlots == 1 ? tr("1 slot") : tr("%1 slots").arg(*candidate.deviceSlots))
                : tr("offloaded"),
            false);
        set(Memory, QString::number(double(candidate.deviceBytes) / 1048576, 'f', 1));
        set(PredictedMs, millisecondsText(row.predicted.stepNs));
        set(PredictedBytes, kibibytesText(row.predicted.bytesPerToken));
        set(MeasuredMs, row.measured ? millisecondsText(row.measured->sums.stepNs()) : QString());
        set(MeasuredBytes, row.measured ? kibibytesText(row.measured->sums.bytesPerToken()) : QString());
        set(Quality, row.measured ? QString::fromStdString(qualityText(row.measured->quality)) : QString(), false);
    }
    if (chosen >= 0) table_->selectRow(chosen);
    const auto count = int(result_->leftOut.size());
    leftOut_->setText(count == 0   ? QString()
                      : count == 1 ? tr("One combination cannot be tried: point here for why")
                                   : tr("%1 combinations cannot be tried: point here for why").arg(count));
    QStringList reasons;
    for (const LeftOut& left : result_->leftOut) reasons << QString::fromStdString(left.name + ": " + left.reason);
    leftOut_->setToolTip(asWritten(reasons.join(QLatin1Char('\n'))));
}

void TuneDialog::fillPlot() {
    for (QCPGraph* graph : {measured_, predicted_, front_, chosen_, floorLine_}) graph->data()->clear();
    intervals_->data()->clear();
    double most = 1;
    if (result_) {
        std::vector<std::size_t> rows = result_->order; // error bars belong to points in the order of their keys
        std::ranges::sort(rows, {}, [&](std::size_t row) { return stepMs(result_->rows[row]); });
        for (const std::size_t index : rows) {
            const TuneRow& row = result_->rows[index];
            const ShareInterval interval = row.measured->quality.interval();
            measured_->addData(stepMs(row), shareOf(row));
            intervals_->addData(shareOf(row) - interval.low, interval.high - shareOf(row));
            predicted_->addData(row.predicted.stepNs / 1e6, shareOf(row));
            if (row.front) front_->addData(stepMs(row), shareOf(row));
            if (result_->recommended == index) chosen_->addData(stepMs(row), shareOf(row));
            most = std::max({most, stepMs(row), row.predicted.stepNs / 1e6});
        }
        floorLine_->addData(0, result_->request.floor);
        floorLine_->addData(2 * most, result_->request.floor);
    }
    plot_->setFullX({0, 1.1 * most});
    plot_->forgetZoom();
    plot_->replot(QCustomPlot::rpQueuedReplot);
}

void TuneDialog::applyTheme(const Theme& theme) {
    plot_->applyTheme(theme);
    legend_->applyTheme(theme);
    measured_->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssDisc, QPen(theme.runA), QBrush(theme.runA), 7));
    predicted_->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssCircle, QPen(theme.mutedText), Qt::NoBrush, 7));
    chosen_->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssDisc, QPen(theme.ok), QBrush(theme.ok), 11));
    intervals_->setPen(QPen(theme.runA, 1));
    front_->setPen(QPen(theme.runA, 1, Qt::DotLine));
    floorLine_->setPen(QPen(theme.warning, 1, Qt::DashLine));
    legend_->setSwatches({{tr("Measured, 95 % interval"), theme.runA, Swatch::Mark::Dot, {}},
                          {tr("Its predicted time"), theme.mutedText, Swatch::Mark::Frame, {}},
                          {tr("Recommended"), theme.ok, Swatch::Mark::Dot, {}},
                          {tr("Front"), theme.runA, Swatch::Mark::Line, {}},
                          {tr("Floor"), theme.warning, Swatch::Mark::Dashes, {}}});
    plot_->replot(QCustomPlot::rpQueuedReplot);
    if (result_) fillTable();
}

void TuneDialog::changeEvent(QEvent* event) {
    QDialog::changeEvent(event);
    if (event->type() == QEvent::PaletteChange && plot_ != nullptr) applyTheme(Theme::current());
}

} // namespace kvscope::ui
