#include "ui/widgets/tune_dialog.h"

#include "base/error.h"
#include "base/whole_file.h"
#include "core/select/method.h"
#include "profiler/tune/tune_text.h"
#include "ui/frame/as_written.h"
#include "ui/frame/dialog_size.h"
#include "ui/frame/empty_page.h"
#include "ui/frame/save_path.h"
#include "ui/frame/small_widgets.h"
#include "ui/look/theme.h"
#include "ui/models/format.h"
#include "ui/plots/plot_canvas.h"
#include "ui/widgets/form_helpers.h"
#include "ui/widgets/tune_options.h"
#include "ui/widgets/tune_plot.h"

#include <QApplication>
#include <QClipboard>
#include <QHeaderView>
#include <QPushButton>
#include <QScrollArea>
#include <QTableWidget>
#include <QVBoxLayout>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <utility>

namespace kvscope::ui {
namespace {

enum Column { Place, Name, Blocks, Memory, PredictedMs, MeasuredMs, PredictedBytes, MeasuredBytes, Quality, Columns };

constexpr int kLeastName = 130; // px, to which names of candidates are cut so that what was measured is in sight

QString kibibytesText(double bytes) {
    return std::isfinite(bytes) ? QString::number(bytes / 1024, 'f', 1) : QStringLiteral("–");
}

QString millisecondsText(double ns) {
    return std::isfinite(ns) ? QString::number(ns / 1e6, 'f', 3) : QStringLiteral("–");
}

/// "Double Sparsity, heavy tokens 176"
QString candidateTitle(const TuneCandidate& candidate) {
    QStringList parts{QString::fromStdString(methodTitle(candidate.method))};
    for (const auto& [key, value] : candidate.settings)
        parts << QStringLiteral("%1 %2").arg(titleOf(key).toLower(), QString::fromStdString(value));
    return parts.join(QStringLiteral(", "));
}

} // namespace

TuneDialog::TuneDialog(QWidget* parent) : ModelWorkDialog(QStringLiteral("tune"), tr("Tune"), parent) {
    auto *left = new QVBoxLayout, *right = new QVBoxLayout;
    left->addWidget(makeTitle());
    options_ = new TuneOptions;
    left->addWidget(makeColumnScroll(options_), 1);
    empty_ = new EmptyPage;
    empty_->setTexts(
        tr("What to decode with, tried out"),
        tr("Tune predicts how long a step takes with every method, budget and block size that fits the memory. It runs "
           "the fastest of them on the prompts that are chosen at the left, and recommends the fastest one that gives "
           "enough good answers. Nothing is recommended that was not run."),
        {});
    right->addWidget(empty_, 1);
    plot_ = new TunePlot(this);
    right->addWidget(plot_->canvas(), 1);
    makeTable(right);
    makeFooter(layOut(left, right));
    const QSize room =
        parent ? parent->window()->size().expandedTo({960, 600}) : QSize(QWIDGETSIZE_MAX, QWIDGETSIZE_MAX);
    resizeOnScreen(*this, QSize(1180, 680).boundedTo(room));
    connect(options_, &TuneOptions::changed, this, &TuneDialog::refresh);
    connect(&job_, &TuningJob::advanced, this, [this](double fraction, const QString& what) {
        showFraction(fraction);
        what_->setText(inTitles(what));
    });
    connect(&job_, &TuningJob::changed, this, [this](const TuneResult& result) { showResult(result, false); });
    connect(&job_, &TuningJob::finished, this, [this](const TuneResult& result) { showResult(result, true); });
    connect(&job_, &TuningJob::cancelled, this,
            [this] { showCancelled(tr("Cancelled before anything was measured.")); });
    connect(&job_, &TuningJob::failed, this, &TuneDialog::showFailed);
    applyTheme(Theme::current());
    clearResult();
    refresh();
}

void TuneDialog::clearResult() {
    result_.reset();
    table_->setRowCount(0);
    leftOut_->clear();
    plot_->show(nullptr);
    plot_->canvas()->hide();
    table_->hide();
    empty_->show();
}

QString TuneDialog::inTitles(const QString& what) const {
    if (result_)
        for (const TuneRow& row : result_->rows)
            if (const QString name = QString::fromStdString(row.candidate.name());
                what.endsWith(QLatin1Char(' ') + name))
                return what.chopped(name.size()) + candidateTitle(row.candidate);
    return what;
}

void TuneDialog::makeTable(QVBoxLayout* layout) {
    table_ = new QTableWidget(0, Columns);
    table_->setObjectName(QStringLiteral("tuneTable"));
    table_->setAccessibleName(tr("Candidates, fastest predicted first"));
    table_->setHorizontalHeaderLabels({tr("#"), tr("Candidate"), tr("Blocks"), tr("MiB"), tr("ms/step\npredicted"),
                                       tr("ms/step\nmeasured"), tr("KiB/token\npredicted"), tr("KiB/token\nmeasured"),
                                       tr("Good answers\n(95 % interval)")});
    table_->horizontalHeaderItem(Quality)->setTextAlignment(Qt::AlignLeft | Qt::AlignVCenter);
    table_->verticalHeader()->hide();
    table_->setWordWrap(false);
    table_->setShowGrid(false);
    table_->verticalHeader()->setDefaultSectionSize(table_->fontMetrics().height() + 6);
    table_->horizontalHeader()->setSectionResizeMode(QHeaderView::ResizeToContents);
    table_->setSelectionBehavior(QAbstractItemView::SelectRows);
    table_->setSelectionMode(QAbstractItemView::SingleSelection);
    table_->setEditTriggers(QAbstractItemView::NoEditTriggers);
    table_->setMinimumHeight(140);
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
    run_ = named(new QPushButton(tr("Run This")), "tuneRun", tr("Decode with the chosen row and record it"));
    copy_ = named(new QPushButton(tr("Copy Command")), "tuneCopy", tr("The command line of the chosen row"));
    save_ = named(new QPushButton(tr("Save JSON…")), "tuneSave", tr("All candidates, their numbers and the choice"));
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
    addFooter(layout, tr("Tune"), tr("Progress of the tuning"), tr("Stop; what was measured stays"),
              {save_, copy_, run_});
}

void TuneDialog::setModel(const QString& nameOrPath, std::shared_ptr<const Model> model) {
    modelName_ = nameOrPath;
    model_ = std::move(model);
    if (model_) options_->setMostTokens(model_->config().maxPositions);
    refresh();
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
    options_->setRunning(running);
    start_->setEnabled(!running && model_ && options_->hasPrompts());
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
        TuningTask task = options_->task();
        task.request.modelName = modelName_.toStdString();
        job_.start(model_, std::move(task));
    } catch (const Error& error) {
        message_->show(InlineMessage::Kind::Error, QString::fromStdString(oneLine(error)));
        return;
    }
    clearResult();
    showFraction(0);
    refresh();
}

void TuneDialog::showResult(const TuneResult& result, bool done) {
    result_ = result;
    empty_->hide();
    table_->show();
    fillTable();
    plot_->show(&*result_);
    plot_->canvas()->setVisible(!result_->order.empty()); // axes without a point say nothing
    if (done) {
        showFraction(result.cancelled ? 0 : 1);
        what_->setText(result.cancelled ? tr("Cancelled.") : tr("Done."));
        verdict_->setText(QString::fromStdString(tuneVerdict(
            result, [](const TuneCandidate& candidate) { return candidateTitle(candidate).toStdString(); })));
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
        set(Name, candidateTitle(candidate), false);
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
    int others = 0;
    for (int column = 0; column < Columns; ++column)
        if (column != Name) others += table_->columnWidth(column);
    table_->horizontalHeader()->setSectionResizeMode(Name, QHeaderView::Interactive);
    int longest = kLeastName;
    for (int row = 0; row < table_->rowCount(); ++row)
        longest = std::max(
            longest,
            QFontMetrics(table_->item(row, Name)->font()).horizontalAdvance(table_->item(row, Name)->text()) + 16);
    table_->setColumnWidth(Name, std::clamp(table_->viewport()->width() - others, kLeastName, longest));
    const auto count = int(result_->leftOut.size());
    leftOut_->setText(count == 0   ? QString()
                      : count == 1 ? tr("One combination cannot be tried: point here for why")
                                   : tr("%1 combinations cannot be tried: point here for why").arg(count));
    QStringList reasons;
    for (const LeftOut& left : result_->leftOut) reasons << QString::fromStdString(left.name + ": " + left.reason);
    leftOut_->setToolTip(asWritten(reasons.join(QLatin1Char('\n'))));
}

void TuneDialog::applyTheme(const Theme& theme) {
    plot_->applyTheme(theme);
    if (result_) fillTable();
}

} // namespace kvscope::ui
