// Asks what a fork of a recorded run changes: it goes on from a step with another method, budget, cache or length, or
// without a block.
#pragma once

#include "ui/session/session_controller.h"

#include <QDialog>

class QCheckBox;
class QComboBox;
class QDialogButtonBox;
class QFormLayout;
class QSpinBox;

namespace kvscope::ui {

class InlineMessage;
class MutedLabel;
class ParameterPanel;

class ForkDialog final : public QDialog {
    Q_OBJECT
public:
    /// recorded: what the run was recorded with. cursor: step, block and sequence to begin with
    ForkDialog(const RunKey& key, const RunRow& row, const RecordedSettings& recorded, const Cursor& cursor,
               QWidget* parent);

    /// What is asked for; with what differs from the recorded settings only.
    ForkRequest request() const;

    /// Says in the dialog what cannot be, and stays open.
    void accept() override;

private:
    void addChoices(QFormLayout& form, const RunRow& row, int step, int block);
    void showMethod();
    void explain();

    const RunKey key_;
    const RecordedSettings recorded_;
    const int sequence_; // whose block is left out
    QSpinBox *step_ = nullptr, *slots_ = nullptr, *tokens_ = nullptr, *block_ = nullptr;
    QComboBox *method_ = nullptr, *policy_ = nullptr;
    QCheckBox *resident_ = nullptr, *without_ = nullptr;
    ParameterPanel* parameters_ = nullptr;
    MutedLabel* what_ = nullptr;
    InlineMessage* message_ = nullptr;
    QDialogButtonBox* buttons_ = nullptr;
};

} // namespace kvscope::ui
