#include "ui/widgets/calibrate_dialog.h"

#include "ui/frame/as_written.h"
#include "ui/frame/dialog_size.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/models/format.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/widgets/form_helpers.h"

#include <QCheckBox>
#include <QComboBox>
#include <QDir>
#include <QFileDialog>
#include <QFileInfo>
#include <QFormLayout>
#include <QHBoxLayout>
#include <QLineEdit>
#include <QPushButton>
#include <QSpinBox>
#include <QStandardPaths>
#include <QVBoxLayout>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {
namespace {

template <class Quality> double meanOf(const std::vector<Quality>& layers, double Quality::*value) {
    double sum = 0;
    for (const Quality& layer : layers) sum += layer.*value;
    return layers.empty() ? 0 : sum / double(layers.size());
}

QString percent(double share) { return QString::number(100 * share, 'f', 1) + QStringLiteral(" %"); }

} // namespace

CalibrateDialog::CalibrateDialog(QWidget* parent)
    : ModelWorkDialog(QStringLiteral("calibrate"), tr("Calibrate"), parent) {
    auto *left = new QVBoxLayout, *right = new QVBoxLayout;
    makeOptions(left);
    makePlot(right);
    addFooter(layOut(left, right), tr("Calibrate"), tr("Progress of the calibration"), tr("Stop; nothing is written"));
    resizeOnScreen(*this, {960, 560});
    connect(&job_, &CalibrationJob::advanced, this, &CalibrateDialog::showProgress);
    connect(&job_, &CalibrationJob::finished, this,
            [this](const std::vector<std::string>& files, const std::shared_ptr<const Model>& model,
                   const CalibrateResult& result) {
                showResult(files, result);
                refresh();
                emit calibrated(runningName_, model);
            });
    connect(&job_, &CalibrationJob::cancelled, this, [this] { showCancelled(tr("Cancelled; nothing was written.")); });
    connect(&job_, &CalibrationJob::failed, this, &CalibrateDialog::showFailed);
    applyTheme(Theme::current());
    refresh();
}

void CalibrateDialog::makeOptions(QVBoxLayout* layout) {
    layout->addWidget(makeTitle());
    forecast_ = named(new QCheckBox(tr("Forecast heads (SparDA)")), "calibrateForecast",
                      tr("Projections of one layer's input that find the next layer's blocks"));
    retaining_ = named(new QCheckBox(tr("Retaining heads (Locret)")), "calibrateRetaining",
                       tr("Small networks that score how long a token should be kept"));
    channels_ = named(new QCheckBox(tr("Channels (Double Sparsity, AsyncTLS)")), "calibrateChannels",
                      tr("Which channels of the keys matter; measured, nothing is trained"));
    for (QCheckBox* box : {forecast_, retaining_, channels_}) {
        box->setChecked(true);
        connect(box, &QCheckBox::toggled, this, &CalibrateDialog::refresh);
        layout->addWidget(box);
    }
    teacher_ = named(new QComboBox, "calibrateTeacher", tr("What the Forecast learns to point at"));
    teacher_->addItem(tr("The backbone's own score"), int(ForecastTeacher::Backbone));
    teacher_->addItem(tr("Exact attention (SparDA's recipe)"), int(ForecastTeacher::Attention));
    const CalibrateOptions defaults;
    texts_ = countField("calibrateTexts", 2, 4096, defaults.texts,
                        tr("Pieces of text that are read; an eighth of them is left out of the training"), tr("texts"));
    tokens_ = countField("calibrateTokens", 64, 1 << 20, defaults.tokens, tr("Tokens of one piece"), tr("tokens"));
    steps_ = countField("calibrateSteps", 1, 1'000'000, defaults.training.steps, tr("Training steps"), tr("steps"));
    auto* form = new QFormLayout;
    form->addRow(tr("Forecast learns"), teacher_);
    form->addRow(tr("Read"), texts_);
    form->addRow(tr("of"), tokens_);
    form->addRow(tr("Train for"), steps_);
    folder_ = named(new QLineEdit, "calibrateFolder", tr("Base weights do not change: what is learned goes here"));
    folder_->setAccessibleName(tr("Folder for what is learned"));
    browse_ = named(new QToolButton, "calibrateBrowse", tr("Choose a folder"));
    browse_->setText(QStringLiteral("…"));
    browse_->setAccessibleName(tr("Choose a folder"));
    connect(browse_, &QToolButton::clicked, this, &CalibrateDialog::chooseFolder);
    connect(folder_, &QLineEdit::textChanged, this, &CalibrateDialog::refresh);
    auto* row = new QHBoxLayout;
    row->addWidget(folder_, 1);
    row->addWidget(browse_);
    form->addRow(tr("Write to"), row);
    layout->addSpacing(6);
    layout->addLayout(form);
    files_ = new MutedLabel;
    files_->setObjectName(QStringLiteral("calibrateFiles"));
    files_->setWordWrap(true);
    // Room for four lines, so that a longer text does not move the layout.
    files_->setMinimumSize(320, 4 * files_->fontMetrics().lineSpacing());
    files_->setAlignment(Qt::AlignTop | Qt::AlignLeft);
    layout->addWidget(files_);
    layout->addStretch();
}

void CalibrateDialog::makePlot(QVBoxLayout* layout) {
    plot_ = new PlotCanvas;
    plot_->setObjectName(QStringLiteral("calibratePlot"));
    plot_->setAccessibleName(tr("Losses of the training"));
    plot_->setMinimumSize(420, 300);
    legend_ = new LegendStrip(plot_);
    plot_->plotLayout()->addElement(0, 0, legend_);
    plot_->setSelectsSteps(false);
    const std::array titles{tr("Forecast KL"), tr("Retaining loss")};
    for (std::size_t i = 0; i < curves_.size(); ++i) {
        Curve& curve = curves_[i];
        QCPAxisRect* rect = plot_->addPanel(false);
        curve.panel = int(i);
        QCPAxis *x = rect->axis(QCPAxis::atBottom), *y = rect->axis(QCPAxis::atLeft);
        y->setLabel(titles[i]);
        setIntegerAxis(x, i + 1 == curves_.size() ? tr("Training step") : QString());
        curve.training = new QCPGraph(x, y);
        curve.leftOut = new QCPGraph(x, y);
        curve.leftOut->setScatterStyle(QCPScatterStyle(QCPScatterStyle::ssDisc, 5));
    }
    plot_->setFullX({0, double(steps_->value())});
    connect(steps_, &QSpinBox::valueChanged, plot_, [this](int steps) {
        if (!job_.isRunning()) plot_->setFullX({0, double(steps)});
    });
    layout->addWidget(plot_, 1);
    result_ = new MutedLabel;
    result_->setObjectName(QStringLiteral("calibrateResult"));
    result_->setWordWrap(true);
    result_->hide();
    layout->addWidget(result_);
}

void CalibrateDialog::setModel(const QString& nameOrPath, std::shared_ptr<const Model> model) {
    const bool other = nameOrPath != modelName_;
    modelName_ = nameOrPath;
    model_ = std::move(model);
    if (!model_) return refresh();
    tokens_->setMaximum(model_->config().maxPositions);
    if (other) {
        const QDir ours(QStandardPaths::writableLocation(QStandardPaths::AppDataLocation));
        folder_->setText(model_->folder().empty()
                             ? ours.filePath(QStringLiteral("calibrated/") + QString::fromStdString(model_->name()))
                             : QString::fromStdString(model_->folder()));
    }
    refresh();
}

void CalibrateDialog::chooseFolder() {
    const QString chosen = QFileDialog::getExistingDirectory(this, tr("Folder for the calibration"), folder_->text());
    if (!chosen.isEmpty()) folder_->setText(chosen);
}

CalibrateOptions CalibrateDialog::options() const {
    CalibrateOptions options;
    options.forecast = forecast_->isChecked();
    options.retaining = retaining_->isChecked();
    options.channels = channels_->isChecked();
    options.texts = texts_->value();
    options.tokens = tokens_->value();
    options.queriesPerText = std::min(options.queriesPerText, options.tokens);
    options.training.steps = steps_->value();
    options.training.farBlocks = 0; // 0: as many blocks as the method selects by query
    options.training.teacher = ForecastTeacher(teacher_->currentData().toInt());
    return options;
}

/// Enables the fields and buttons that can be used now, and writes the sentence that says which files will be written
/// and which of them will be replaced.
void CalibrateDialog::refresh() {
    const bool running = job_.isRunning();
    title_->setText(model_ ? tr("What methods must learn about %1").arg(QString::fromStdString(model_->name()))
                           : tr("No model is loaded"));
    QStringList names;
    const CalibrateOptions now = options();
    for (const std::string& file : calibrationFiles(now)) names << QString::fromStdString(file);
    QStringList existing;
    for (const QString& file : names)
        if (QFileInfo::exists(QDir(folder_->text()).filePath(file))) existing << file;
    QString text = names.isEmpty() ? tr("Nothing is chosen.") : tr("Writes %1.").arg(names.join(QStringLiteral(", ")));
    if (!existing.isEmpty()) text += QLatin1Char(' ') + tr("Replaces %1.").arg(existing.join(QStringLiteral(", ")));
    files_->setText(text);
    for (QWidget* widget :
         std::initializer_list<QWidget*>{forecast_, retaining_, channels_, texts_, tokens_, folder_, browse_})
        widget->setEnabled(!running);
    teacher_->setEnabled(!running && now.forecast);
    steps_->setEnabled(!running && (now.forecast || now.retaining));
    start_->setEnabled(!running && model_ && !names.isEmpty() && !folder_->text().trimmed().isEmpty());
    start_->setToolTip(start_->isEnabled() ? tr("Read the texts and learn") : asWritten(text));
    cancel_->setEnabled(running);
}

void CalibrateDialog::clearCurves() {
    for (Curve& curve : curves_) {
        curve.training->data()->clear();
        curve.leftOut->data()->clear();
        curve.most = 0;
        curve.lastStep = 0;
    }
    plot_->forgetZoom();
    plot_->replot();
}

void CalibrateDialog::start() {
    if (!model_ || job_.isRunning()) return;
    message_->clear();
    result_->hide();
    clearCurves();
    plot_->setFullX({0, double(steps_->value())});
    showFraction(0);
    runningName_ = modelName_;
    job_.start(modelName_, model_, options(), QDir::cleanPath(folder_->text().trimmed()));
    refresh();
}

void CalibrateDialog::showProgress(double fraction, const QString& what, const std::vector<LossPoint>& points) {
    showFraction(fraction);
    QString text = what;
    for (const LossPoint& point : points)
        for (Curve& curve : curves_) {
            if (curve.stage != point.stage) continue;
            curve.training->addData(point.step, point.loss);
            curve.most = std::max(curve.most, point.loss);
            curve.lastStep = point.step;
            if (std::isnan(point.testLoss)) continue;
            curve.leftOut->addData(point.step, point.testLoss);
            curve.most = std::max(curve.most, point.testLoss);
        }
    if (!points.empty())
        text += QStringLiteral(" · ") +
                tr("step %1, loss %2").arg(formatCount(points.back().step)).arg(points.back().loss, 0, 'f', 3);
    what_->setText(text);
    if (points.empty()) return;
    for (const Curve& curve : curves_)
        if (curve.most > 0) plot_->setFullY(curve.panel, {0, 1.05 * curve.most});
    plot_->replot(QCustomPlot::rpQueuedReplot);
}

void CalibrateDialog::showResult(const std::vector<std::string>& files, const CalibrateResult& result) {
    showFraction(1);
    QStringList lines, written;
    for (const std::string& file : files) written << QFileInfo(QString::fromStdString(file)).fileName();
    if (!result.report.after.empty())
        lines << tr("Forecast: KL %1 → %2 on texts left out; of the backbone's own blocks %3 → %4 found.")
                     .arg(meanOf(result.report.before, &ForecastQuality::loss), 0, 'f', 3)
                     .arg(meanOf(result.report.after, &ForecastQuality::loss), 0, 'f', 3)
                     .arg(percent(meanOf(result.report.before, &ForecastQuality::recall)),
                          percent(meanOf(result.report.after, &ForecastQuality::recall)));
    if (!result.retainingReport.after.empty())
        lines
            << tr("Retaining heads: loss %1 → %2; of the most wanted quarter of the tokens %3 found (25 % by chance).")
                   .arg(meanOf(result.retainingReport.before, &RetainingQuality::loss), 0, 'f', 3)
                   .arg(meanOf(result.retainingReport.after, &RetainingQuality::loss), 0, 'f', 3)
                   .arg(percent(meanOf(result.retainingReport.after, &RetainingQuality::kept)));
    result_->setText(lines.join(QLatin1Char('\n')));
    result_->setVisible(!lines.isEmpty());
    what_->setText(tr("Written: %1. The session form runs with that now.").arg(written.join(QStringLiteral(", "))));
}

void CalibrateDialog::applyTheme(const Theme& theme) {
    plot_->applyTheme(theme);
    legend_->applyTheme(theme);
    for (const Curve& curve : curves_) {
        QColor faint = theme.runA;
        faint.setAlphaF(0.55);
        curve.training->setPen(QPen(faint, 1));
        curve.leftOut->setPen(QPen(theme.runB, 2));
    }
    legend_->setSwatches({{tr("Training, every step"), theme.runA, Swatch::Mark::Line, {}},
                          {tr("Texts left out"), theme.runB, Swatch::Mark::Line, {}}});
    plot_->replot(QCustomPlot::rpQueuedReplot);
}

} // namespace kvscope::ui
