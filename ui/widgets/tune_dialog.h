// The dialog that chooses with which method, budget and block size to decode, as `kvscope-cli tune` does: the user says
// memory, link, load and how good the answers must be, sees the candidates predicted and measured side by side, and
// runs the choice. The dialog is not modal.
#pragma once

#include "ui/session/tuning_job.h"

#include <QDialog>

#include <memory>
#include <optional>

class QLabel;
class QProgressBar;
class QPushButton;
class QTableWidget;
class QVBoxLayout;

namespace kvscope::ui {

class InlineMessage;
class MeasuredLabel;
class MutedLabel;
class TuneOptions;
class TunePlot;
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
    void makeTable(QVBoxLayout* layout);
    void makeFooter(QVBoxLayout* layout);
    void refresh();
    void start();
    void showResult(const TuneResult& result, bool done);
    void fillTable();
    std::optional<std::size_t> chosenRow() const;

    TuningJob job_;
    QString name_;
    std::shared_ptr<const Model> model_;
    std::optional<TuneResult> result_;
    QLabel* title_ = nullptr;
    TuneOptions* options_ = nullptr;
    MutedLabel *what_ = nullptr, *leftOut_ = nullptr;
    MeasuredLabel* verdict_ = nullptr;
    InlineMessage* message_ = nullptr;
    QProgressBar* bar_ = nullptr;
    QPushButton *start_ = nullptr, *cancel_ = nullptr, *run_ = nullptr, *copy_ = nullptr, *save_ = nullptr;
    QTableWidget* table_ = nullptr;
    TunePlot* plot_ = nullptr;
};

} // namespace kvscope::ui
