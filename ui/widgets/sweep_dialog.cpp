#include "ui/widgets/sweep_dialog.h"

#include "ui/frame/as_written.h"
#include "ui/frame/dialog_size.h"
#include "ui/frame/small_widgets.h"
#include "ui/look/theme.h"
#include "ui/models/format.h"
#include "ui/widgets/form_helpers.h"
#include "ui/widgets/sweep_axis_editor.h"

#include <QComboBox>
#include <QFileDialog>
#include <QFileInfo>
#include <QHBoxLayout>
#include <QHeaderView>
#include <QLabel>
#include <QPushButton>
#include <QScopedValueRollback>
#include <QScrollArea>
#include <QTreeWidget>
#include <QVBoxLayout>

#include <algorithm>
#include <utility>

namespace kvscope::ui {
namespace {

constexpr int kTraceFile = 1; // of the list of traces: the entry that asks for a file

constexpr int kNameWidth = 220; // least width of the names of runs, px

/// What is swept most: the first of these settings that the form's method has.
const char* const kUsual[] = {"total_blocks", "budget_tokens", "page_budget", "budget", "index_topk", "block_size"};

} // namespace

SweepDialog::SweepDialog(SweepBase base, QWidget* parent) : QDialog(parent), base_(std::move(base)) {
    setObjectName(QStringLiteral("sweepDialog"));
    setWindowTitle(tr("Sweep"));
    setAttribute(Qt::WA_DeleteOnClose);
    setModal(true);
    auto* about = new MutedLabel(tr("A run for every combination of the values below. All else is as in the session "
                                    "form; what was changed there for its method goes to every method that has it."));
    about->setWordWrap(true);
    auto* layout = new QVBoxLayout(this);
    layout->setContentsMargins(16, 14, 16, 14);
    layout->setSpacing(10);
    layout->addWidget(about);
    layout->addWidget(makeAxes(), 2);
    layout->addWidget(makePreview(), 3);
    layout->addWidget(makeFooter());
    resizeOnScreen(*this, {620, 560});
    fields_ = sweepFields(base_, methodNames());
    SweepAxisEditor* first = addAxis();
    for (const char* key : kUsual)
        if (std::any_of(fields_.begin(), fields_.end(), [&](const SweepField& each) { return each.key == key; })) {
            first->choose(key);
            break;
        }
    first->focusValues();
    refresh();
}

QWidget* SweepDialog::makeAxes() {
    auto* page = new QWidget;
    axisColumn_ = new QVBoxLayout(page);
    axisColumn_->setContentsMargins(0, 0, 0, 0);
    axisColumn_->setSpacing(8);
    more_ = named(new QPushButton(tr("Vary Another Setting")), "sweepMore", tr("A further list of values"));
    axisColumn_->addWidget(more_, 0, Qt::AlignLeft);
    axisColumn_->addStretch();
    connect(more_, &QPushButton::clicked, this, [this] {
        addAxis()->focusValues();
        refresh();
    });
    auto* scroll = new QScrollArea;
    scroll->setWidget(page);
    scroll->setWidgetResizable(true);
    scroll->setFrameShape(QFrame::NoFrame);
    scroll->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
    scroll->setMinimumHeight(96);
    return scroll;
}

QWidget* SweepDialog::makePreview() {
    auto* part = new QWidget;
    count_ = new QLabel;
    count_->setObjectName(QStringLiteral("sweepCount"));
    count_->setWordWrap(true);
    QFont bold = count_->font();
    bold.setBold(true);
    count_->setFont(bold);
    list_ = new QTreeWidget;
    list_->setObjectName(QStringLiteral("sweepRuns"));
    list_->setAccessibleName(tr("Runs of the sweep"));
    list_->setHeaderLabels({tr("Run"), tr("Why it cannot run")});
    list_->setRootIsDecorated(false);
    list_->setUniformRowHeights(true);
    list_->setAlternatingRowColors(true);
    list_->setMinimumHeight(90);
    list_->header()->setStretchLastSection(true);
    message_ = new InlineMessage(nullptr, false);
    message_->setObjectName(QStringLiteral("sweepMessage"));
    auto* column = new QVBoxLayout(part);
    column->setContentsMargins(0, 0, 0, 0);
    column->setSpacing(6);
    column->addWidget(message_);
    column->addWidget(count_);
    column->addWidget(list_, 1);
    column->addStretch(0); // below a message without a list
    return part;
}

QWidget* SweepDialog::makeFooter() {
    auto* part = new QWidget;
    trace_ = named(new QComboBox, "sweepTrace", tr("Into which trace file all runs are recorded"));
    trace_->setAccessibleName(tr("Trace"));
    trace_->addItem(tr("Into a new trace"));
    trace_->addItem(tr("Into a file…"));
    connect(trace_, &QComboBox::activated, this, [this](int index) {
        if (index == kTraceFile) chooseTrace();
    });
    add_ = new QPushButton;
    add_->setObjectName(QStringLiteral("sweepAdd"));
    add_->setProperty("primary", true);
    add_->setDefault(true);
    auto* cancel = new QPushButton(tr("Cancel"));
    cancel->setAutoDefault(false);
    more_->setAutoDefault(false);
    connect(add_, &QPushButton::clicked, this, &QDialog::accept);
    connect(cancel, &QPushButton::clicked, this, &QDialog::reject);
    auto* row = new QHBoxLayout(part);
    row->setContentsMargins(0, 0, 0, 0);
    row->addWidget(trace_);
    row->addStretch();
    row->addWidget(cancel);
    row->addWidget(add_);
    return part;
}

SweepAxisEditor* SweepDialog::addAxis() {
    auto* axis = new SweepAxisEditor;
    axis->setFields(fieldsFor(axis));
    axes_.push_back(axis);
    axisColumn_->insertWidget(int(axes_.size()) - 1, axis);
    connect(axis, &SweepAxisEditor::changed, this, &SweepDialog::refresh);
    connect(axis, &SweepAxisEditor::removeRequested, this, [this, axis] { removeAxis(axis); });
    return axis;
}

void SweepDialog::removeAxis(SweepAxisEditor* axis) {
    std::erase(axes_, axis);
    axis->hide();
    axis->deleteLater();
    axes_.back()->focusValues();
    refresh();
}

/// The methods of the runs: those that vary, or the form's.
QStringList SweepDialog::methodNames() const {
    QStringList names;
    for (const SweepAxisEditor* axis : axes_) {
        if (axis->field() == nullptr || axis->field()->key != "method" || axis->isEmpty()) continue;
        try {
            for (const std::string& name : axis->axis().values)
                if (axis->field()->choices.contains(QString::fromStdString(name)))
                    names << QString::fromStdString(name);
        } catch (const Error&) { // plan() says what is wrong
        }
    }
    return names.isEmpty() ? QStringList{QString::fromStdString(base_.form.options.method)} : names;
}

/// The settings that no other line varies.
std::vector<SweepField> SweepDialog::fieldsFor(const SweepAxisEditor* axis) const {
    std::vector<SweepField> free;
    for (const SweepField& field : fields_)
        if (std::none_of(axes_.begin(), axes_.end(), [&](const SweepAxisEditor* other) {
                return other != axis && other->field() != nullptr && other->field()->key == field.key;
            }))
            free.push_back(field);
    return free;
}

void SweepDialog::refresh() {
    if (refreshing_) return;
    const QScopedValueRollback<bool> once(refreshing_, true);
    fields_ = sweepFields(base_, methodNames());
    // A line whose setting no method of the sweep has any more keeps it, so that what is wrong can be said.
    for (SweepAxisEditor* axis : axes_) {
        std::vector<SweepField> fields = fieldsFor(axis);
        const SweepField* own = axis->field();
        if (own != nullptr &&
            std::none_of(fields.begin(), fields.end(), [&](const SweepField& each) { return each.key == own->key; }))
            fields.push_back(*own);
        axis->setFields(fields);
        axis->showRemove(axes_.size() > 1);
    }
    plan();
}

void SweepDialog::plan() {
    runs_.clear();
    for (const SweepAxisEditor* axis : axes_)
        if (axis->isEmpty())
            return showRuns(tr("Give the values of “%1”, with commas between them.")
                                .arg(axis->field() != nullptr ? axis->field()->title : QString()),
                            {});
    try {
        std::vector<SweepAxis> axes;
        for (const SweepAxisEditor* axis : axes_) axes.push_back(axis->axis());
        runs_ = planSweep(base_, axes);
    } catch (const Error& error) {
        return showRuns({}, inWordsOfForm(error, fields_) + QLatin1Char('.'));
    }
    showRuns({}, runs().empty() ? runs_.front().problem + QLatin1Char('.') : QString());
}

/// wanted: what is still missing. problem: why nothing can be run.
void SweepDialog::showRuns(const QString& wanted, const QString& problem) {
    list_->clear();
    const Theme& theme = Theme::current();
    for (const SweptRun& run : runs_) {
        auto* item = new QTreeWidgetItem(list_, {run.name, run.problem});
        item->setToolTip(0, asWritten(run.problem.isEmpty() ? run.name : run.problem));
        item->setToolTip(1, asWritten(run.problem));
        if (run.problem.isEmpty()) continue;
        item->setForeground(0, theme.mutedText);
        item->setForeground(1, theme.danger);
    }
    const auto able = int(runs().size()), unable = int(runs_.size()) - able;
    list_->setColumnHidden(1, unable == 0);
    list_->resizeColumnToContents(0);
    list_->header()->resizeSection(0, std::max(kNameWidth, list_->columnWidth(0)));
    if (problem.isEmpty())
        message_->clear();
    else
        message_->show(InlineMessage::Kind::Error, problem);
    const QString runsText = able == 1 ? tr("1 run") : tr("%1 runs").arg(formatCount(able));
    count_->setText(!wanted.isEmpty() ? wanted
                    : runs_.empty()   ? QString()
                    : unable == 0     ? runsText
                    : unable == 1     ? tr("%1. One more cannot run and is left out.").arg(runsText)
                                      : tr("%1. %2 more cannot run and are left out.").arg(runsText).arg(unable));
    count_->setVisible(!count_->text().isEmpty());
    list_->setVisible(!runs_.empty());
    add_->setEnabled(able > 0);
    add_->setText(able == 0   ? tr("Add to Queue")
                  : able == 1 ? tr("Add 1 Run to Queue")
                              : tr("Add %1 Runs to Queue").arg(formatCount(able)));
    add_->setToolTip(able > 0 ? tr("The first begins at once if no session runs") : asWritten(wanted + problem));
}

std::vector<std::pair<QString, SessionRequest>> SweepDialog::runs() const {
    std::vector<std::pair<QString, SessionRequest>> able;
    for (const SweptRun& run : runs_)
        if (run.problem.isEmpty()) able.emplace_back(run.name, run.request);
    return able;
}

QString SweepDialog::trace() const {
    return trace_->currentIndex() == kTraceFile ? trace_->itemData(kTraceFile).toString() : QString();
}

void SweepDialog::chooseTrace() {
    QString file = QFileDialog::getSaveFileName(this, tr("Record into a trace"), SessionController::tracesFolder(),
                                                tr("Traces (*.kvtrace)"), nullptr,
                                                QFileDialog::DontConfirmOverwrite); // runs are added to those in it
    if (file.isEmpty()) return trace_->setCurrentIndex(0);
    if (QFileInfo(file).suffix().isEmpty()) file += QStringLiteral(".kvtrace");
    trace_->setItemData(kTraceFile, file);
    trace_->setItemText(kTraceFile, tr("Into %1").arg(QFileInfo(file).fileName()));
    trace_->setToolTip(asWritten(file));
}

} // namespace kvscope::ui
