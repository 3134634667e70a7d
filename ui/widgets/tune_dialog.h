// The dialog that chooses with which method, budget and block size to decode, as `kvscope-cli tune` does: the user says
// memory, link, load and how good the answers must be, sees the candidates predicted and measured side by side, and
// runs the choice. The dialog is not modal.
#pragma once

#include "ui/session/tuning_job.h"

#include <QDialog>

#include <memory>
#include <optional>

class QCheckBox;
class QComboBox;
class QDoubleSpinBox;
class QLabel;
class QLineEdit;
class QProgressBar;
class QPushButton;
class QSpinBox;
class QTableWidget;
class QVBoxLayout;
class QCPErrorBars;
class QCPGraph;

namespace kvscope::ui {

class InlineMessage;
class LegendStrip;
class MeasuredLabel;
class MutedLabel;
class PlotCanvas;
struct Theme;

class TuneDialog final : public QDialog {
    Q_OBJECT
public:
    explicit TuneDialog(QWidget* parent = nullptr);

    /// Takes the model that the session form has loaded. A tuning that is running keeps the model with which it began.
    void setModel(const QString& nameOrPath, std::shared_ptr<const Model> model);
    void applyTheme(const Theme& theme);
    const std::optional<TuneResult>& result() const { return result_; }

signals:
    /// The user wants to decode with this row of the result.
    void runRequested(const kvscope::TuneResult& result, std::size_t row);

protected:
    void changeEvent(QEvent* event) override;

private:
    void makeOptions(QVBoxLayout* layout);
    void makePlot(QVBoxLayout* layout);
    void makeTable(QVBoxLayout* layout);
    void makeFooter(QVBoxLayout* layout);
    void refresh();
    void start();
    void showResult(const TuneResult& result, bool done);
    void fillTable();
    void fillPlot();
    void chooseFile();
    TuningTask task() const;
    std::optional<std::size_t> chosenRow() const;

    TuningJob job_;
    QString name_;
    std::shared_ptr<const Model> model_;
    std::optional<TuneResult> result_;
    QLabel* title_ = nullptr;
    QDoubleSpinBox *memory_ = nullptr, *floor_ = nullptr, *linkGbps_ = nullptr;
    QComboBox *link_ = nullptr, *prompts_ = nullptr, *measure_ = nullptr, *backend_ = nullptr;
    QSpinBox *batch_ = nullptr, *context_ = nullptr, *count_ = nullptr, *newTokens_ = nullptr, *runs_ = nullptr,
             *more_ = nullptr;
    QCheckBox* sure_ = nullptr;
    QLineEdit *methods_ = nullptr, *budgets_ = nullptr, *blocks_ = nullptr;
    MutedLabel *what_ = nullptr, *leftOut_ = nullptr;
    MeasuredLabel* verdict_ = nullptr;
    InlineMessage* message_ = nullptr;
    QProgressBar* bar_ = nullptr;
    QPushButton *start_ = nullptr, *cancel_ = nullptr, *run_ = nullptr, *copy_ = nullptr, *save_ = nullptr;
    QTableWidget* table_ = nullptr;
    PlotCanvas* plot_ = nullptr;
    LegendStrip* legend_ = nullptr;
    QCPGraph *measured_ = nullptr, *predicted_ = nullptr, *front_ = nullptr, *chosen_ = nullptr, *floorLine_ = nullptr;
    QCPErrorBars* intervals_ = nullptr;
};

} // namespace kvscope::ui
