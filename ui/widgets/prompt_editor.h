// The part of the session form in which the user chooses where the prompts come from and edits them.
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
    /// Sets the model whose tokenizer counts the tokens of texts and files. Counting runs on a worker thread.
    void setModel(std::shared_ptr<const Model> model);
    /// Tokens of the longest prompt of the batch, with those that the chat template adds. Empty while they are being
    /// counted.
    std::optional<int> tokens() const;
    /// Why the prompt cannot be used; empty if it can.
    QString problem() const;

    /// Chooses this text file as the source of the prompt.
    void chooseFile(const QString& path);
    /// Takes the prompts of a recorded run, which then decide how many sequences there are.
    void chooseRecorded(const QString& trace, int runId, int sequences);
    /// How many recorded prompts there are; 0: the prompt is of another kind, and any number of sequences can be asked
    /// for.
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
    /// Whether a worker must count the tokens; otherwise the form gives their number.
    bool isCounted() const;
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
    QPlainTextEdit* preview_ = nullptr; // shows what the chat template makes of the prompt
    MutedLabel* chatProblem_ = nullptr;
    MutedLabel* counted_ = nullptr;
    int sequences_ = 1;
    std::shared_ptr<const Model> model_;
    struct Counter; // counts tokens on a worker thread
    std::unique_ptr<Counter> counter_;
    std::optional<int> textTokens_;
    QString countProblem_;
};

} // namespace kvscope::ui
