// Chooses where the prompts come from.
#pragma once

#include "ui/session/prompt_source.h"

#include <QVariantMap>
#include <QWidget>

#include <array>
#include <memory>
#include <optional>

class QCheckBox;
class QComboBox;
class QDoubleSpinBox;
class QLineEdit;
class QPlainTextEdit;
class QSpinBox;

namespace kvscope {
class Model;
}

namespace kvscope::ui {

class MutedLabel;

class PromptEditor final : public QWidget {
    Q_OBJECT
public:
    explicit PromptEditor(QWidget* parent = nullptr);
    ~PromptEditor() override;

    PromptSource source() const;
    void setSequences(int sequences);
    /// Counts tokens of text and files with this model's tokenizer, off the GUI thread.
    void setModel(std::shared_ptr<const Model> model);
    /// Longest prompt of the batch in tokens, the chat template's included; empty while it is being counted.
    std::optional<int> tokens() const;
    /// Why there can be no prompt; empty when there can.
    QString problem() const;

    /// Takes the prompt from this text file.
    void chooseFile(const QString& path);
    /// Takes the prompts of a recorded run, which then decide how many sequences there are.
    void chooseRecorded(const QString& trace, int runId, int sequences);
    /// Of the recorded prompts; 0: the prompt is of another kind, and any number of sequences can be asked for.
    int recordedSequences() const;

    QVariantMap values() const;
    void setValues(const QVariantMap& values);

signals:
    void changed();

private:
    QWidget* makeNeedlePage();
    QWidget* makeDocumentPage();
    QWidget* makeTextPage();
    QWidget* makeFilePage();
    QWidget* makeRecordedPage();
    QWidget* makeChatPart();
    void showChat();
    bool isCounted() const; // on the worker, rather than known from the form
    void edited();
    void count();

    QComboBox* kind_;
    std::array<QWidget*, 5> pages_; // by kind
    QSpinBox *needleTokens_ = nullptr, *needles_ = nullptr, *seed_ = nullptr, *documentTokens_ = nullptr;
    QDoubleSpinBox* depth_ = nullptr;
    QPlainTextEdit* text_ = nullptr;
    QLineEdit* file_ = nullptr;
    MutedLabel* recordedFrom_ = nullptr;
    QString recordedTrace_; // empty: no recorded prompt was chosen yet, and the list of kinds has no such entry
    int recordedRun_ = 0, recordedSequences_ = 0;
    QWidget* chatPart_ = nullptr;
    QCheckBox* chat_ = nullptr;
    QLineEdit* system_ = nullptr;
    QPlainTextEdit* preview_ = nullptr; // of what the chat template makes
    MutedLabel* chatProblem_ = nullptr;
    MutedLabel* counted_ = nullptr;
    int sequences_ = 1;
    std::shared_ptr<const Model> model_;
    struct Counter; // of tokens, on a worker
    std::unique_ptr<Counter> counter_;
    std::optional<int> textTokens_;
    QString countProblem_;
};

} // namespace kvscope::ui
