// The dialog that calibrates a model: it trains what SparDA, Locret, Double Sparsity and AsyncTLS must know about the
// model, as `kvscope-cli calibrate` does. The user chooses what to learn and from how many texts, and sees the losses
// while the training runs. Sessions can run beside it.
#pragma once

#include "ui/session/calibration_job.h"
#include "ui/widgets/model_work_dialog.h"

#include <array>
#include <memory>

class QCheckBox;
class QComboBox;
class QLineEdit;
class QSpinBox;
class QToolButton;
class QVBoxLayout;
class QCPGraph;

namespace kvscope::ui {

class LegendStrip;
class MutedLabel;
class PlotCanvas;

class CalibrateDialog final : public ModelWorkDialog {
    Q_OBJECT
public:
    explicit CalibrateDialog(QWidget* parent = nullptr);

    /// Takes the model that the session form has loaded. A calibration that is running keeps the model with which it
    /// began.
    void setModel(const QString& nameOrPath, std::shared_ptr<const Model> model);
    void applyTheme(const Theme& theme) override;

signals:
    /// A calibration has ended. `model` is the model loaded again with what was learned, ready to run.
    void calibrated(const QString& nameOrPath, std::shared_ptr<const kvscope::Model> model);

private:
    /// The losses of one training in one panel of the plot: of the training texts at every step, and of the texts left
    /// out of the training.
    struct Curve {
        CalibrateStage stage;
        int panel = 0;
        QCPGraph *training = nullptr, *leftOut = nullptr;
        double most = 0;
        int lastStep = 0;
    };

    void makeOptions(QVBoxLayout* layout);
    void makePlot(QVBoxLayout* layout);
    void chooseFolder();
    void refresh() override;
    void start() override;
    void cancel() override { job_.cancel(); }
    void showProgress(double fraction, const QString& what, const std::vector<LossPoint>& points);
    void showResult(const std::vector<std::string>& files, const CalibrateResult& result);
    void clearCurves();
    CalibrateOptions options() const;

    CalibrationJob job_;
    QString runningName_; // the name of the model with which the calibration began
    QCheckBox *forecast_ = nullptr, *retaining_ = nullptr, *channels_ = nullptr;
    QComboBox* teacher_ = nullptr;
    QSpinBox *texts_ = nullptr, *tokens_ = nullptr, *steps_ = nullptr;
    QLineEdit* folder_ = nullptr;
    QToolButton* browse_ = nullptr;
    MutedLabel *files_ = nullptr, *result_ = nullptr;
    PlotCanvas* plot_ = nullptr;
    LegendStrip* legend_ = nullptr;
    std::array<Curve, 2> curves_{Curve{CalibrateStage::Forecast}, Curve{CalibrateStage::Retaining}};
};

} // namespace kvscope::ui
