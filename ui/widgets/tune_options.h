// The form of the tuning dialog: memory, link, load, how good the answers must be, and which candidates there are.
#pragma once

#include "ui/session/tuning_job.h"

#include <QWidget>

class QCheckBox;
class QComboBox;
class QDoubleSpinBox;
class QFormLayout;
class QLineEdit;
class QSpinBox;

namespace kvscope::ui {

class TuneOptions final : public QWidget {
    Q_OBJECT
public:
    explicit TuneOptions(QWidget* parent = nullptr);

    /// Sets the most tokens that the model reads.
    void setMostTokens(int positions);
    /// While a tuning runs, nothing can be changed.
    void setRunning(bool running);
    /// Whether the form names the prompts on which the answers are judged.
    bool hasPrompts() const;
    /// All but the name of the model. @throws Error(BadInput) naming what is no number
    TuningTask task() const;

signals:
    /// Another link or other prompts were chosen.
    void changed();

private:
    void addLoad(QFormLayout* form);
    void addQuality(QFormLayout* form);
    void addCandidates(QFormLayout* form);
    void chooseFile();

    QDoubleSpinBox *memory_ = nullptr, *floor_ = nullptr, *linkGbps_ = nullptr;
    QComboBox *link_ = nullptr, *prompts_ = nullptr, *measure_ = nullptr, *backend_ = nullptr;
    QSpinBox *batch_ = nullptr, *context_ = nullptr, *count_ = nullptr, *newTokens_ = nullptr, *runs_ = nullptr,
             *more_ = nullptr;
    QCheckBox* sure_ = nullptr;
    QLineEdit *methods_ = nullptr, *budgets_ = nullptr, *blocks_ = nullptr;
};

} // namespace kvscope::ui
