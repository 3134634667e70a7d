// Controls of the roofline view: model, GPU, link and method of its curves, and the numbers that are held.
#pragma once

#include "profiler/roofline/measured_run.h"
#include "ui/models/roofline_curves.h"
#include "ui/plots/tool_strip.h"

#include <optional>

class QCheckBox;
class QComboBox;
class QDoubleSpinBox;
class QSpinBox;
class QToolButton;

namespace kvscope::ui {

class RooflineControls final : public ToolStrip {
    Q_OBJECT
public:
    explicit RooflineControls(QWidget* view);

    RooflineChoice choice() const;
    bool logarithmic() const;
    double queryShare() const; // k_q / k
    // Whether the model and the machine that are chosen are known. Without both there is no roof.
    bool knowsModel() const;
    bool knowsMachine() const;
    const GpuTable& gpus() const { return gpus_; }
    /// Why the person's own GPU table is not used; empty if it is, or there is none.
    const QString& problem() const { return problem_; }

    /// Sets the run that is shown. Its conditions are taken over until the user changes a control.
    void setRun(const std::optional<MeasuredRun>& run, const std::optional<ModelShape>& shape);
    /// Takes over the conditions of the shown run.
    void adoptRun();

signals:
    void changed();

private:
    QComboBox* addPicker(const char* name, const QString& label, const QString& help);
    void place(QWidget* editor, const char* name, const QString& label, const QString& help);
    void fillShapes();
    void fillMethods();
    void fillGpus();
    void offerUnknownMachine();
    void methodChanged();
    void axisChanged();
    void enable();
    void touched();

    GpuTable gpus_;
    QString problem_;
    std::optional<MeasuredRun> run_;
    std::optional<ModelShape> runShape_;
    bool filling_ = false, byHand_ = false;
    QComboBox *shape_ = nullptr, *gpu_ = nullptr, *link_ = nullptr, *method_ = nullptr, *axis_ = nullptr,
              *family_ = nullptr;
    QSpinBox *context_ = nullptr, *batch_ = nullptr;
    QDoubleSpinBox *hitRate_ = nullptr, *queryShare_ = nullptr, *kvGib_ = nullptr;
    QCheckBox* logarithmic_ = nullptr;
    QToolButton* asRun_ = nullptr;
};

} // namespace kvscope::ui
