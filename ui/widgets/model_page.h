// The dialog that shows what the program knows about the chosen model: its architecture, its positions, which methods
// apply, and the memory of each tier for a context length and a batch size. `kvscope-cli info` prints the same.
#pragma once

#include "core/session/model_summary.h"

#include <QDialog>

#include <memory>

class QFormLayout;
class QLabel;
class QSpinBox;
class QTableWidget;

namespace kvscope::ui {

class ModelPage final : public QDialog {
    Q_OBJECT
public:
    explicit ModelPage(QWidget* parent = nullptr);
    void setModel(std::shared_ptr<const Model> model);

private:
    void showFacts(const ModelSummary& summary);
    void showMethods(const ModelSummary& summary);
    void showMemory();

    std::shared_ptr<const Model> model_;
    QLabel* title_;
    QFormLayout* facts_;
    QTableWidget *methods_, *memory_;
    QSpinBox *context_, *batch_;
};

} // namespace kvscope::ui
