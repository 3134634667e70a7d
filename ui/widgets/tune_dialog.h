// The dialog that chooses with which method, budget and block size to decode, as `kvscope-cli tune` does: the user says
// memory, link, load and how good the answers must be, sees the candidates predicted and measured side by side, and
// runs the choice.
#pragma once

#include "ui/session/tuning_job.h"
#include "ui/widgets/model_work_dialog.h"

#include <memory>
#include <optional>

class QPushButton;
class QTableWidget;
class QVBoxLayout;

namespace kvscope::ui {

class MeasuredLabel;
class TuneOptions;
class EmptyPage;
class TunePlot;

class TuneDialog final : public ModelWorkDialog {
    Q_OBJECT
public:
    explicit TuneDialog(QWidget* parent = nullptr);

    /// Takes the model that the session form has loaded. A tuning that is running keeps the model with which it began.
    void setModel(const QString& nameOrPath, std::shared_ptr<const Model> model);
    void applyTheme(const Theme& theme) override;
    const std::optional<TuneResult>& result() const { return result_; }

signals:
    /// The user wants to decode with this row of the result.
    void runRequested(const kvscope::TuneResult& result, std::size_t row);

private:
    void makeTable(QVBoxLayout* layout);
    void makeFooter(QVBoxLayout* layout);
    void refresh() override;
    void start() override;
    void cancel() override { job_.cancel(); }
    void showResult(const TuneResult& result, bool done);
    void fillTable();
    std::optional<std::size_t> chosenRow() const;
    /// What is done, with candidates by their titles.
    QString inTitles(const QString& what) const;
    void clearResult();

    TuningJob job_;
    std::optional<TuneResult> result_;
    TuneOptions* options_ = nullptr;
    EmptyPage* empty_ = nullptr; // in the place of plot and table until something is predicted
    MutedLabel* leftOut_ = nullptr;
    MeasuredLabel* verdict_ = nullptr;
    QPushButton *run_ = nullptr, *copy_ = nullptr, *save_ = nullptr;
    QTableWidget* table_ = nullptr;
    TunePlot* plot_ = nullptr;
};

} // namespace kvscope::ui
