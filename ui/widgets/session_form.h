// The form in which the user chooses everything that a session needs: model, prompt, method with its declared
// parameters, sampling, device and link.
#pragma once

#include "core/session/kv_estimate.h"
#include "ui/session/session_controller.h"

#include <QMap>
#include <QVariantMap>
#include <QWidget>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

class QComboBox;
class QSpinBox;
class QToolButton;
class QVBoxLayout;

namespace kvscope::ui {

class InlineMessage;
class ModelPage;
class MutedLabel;
class ParameterPanel;
class PromptEditor;
class SessionAdvanced;
class SessionBackend;
class SessionFooter;
struct SessionToRepeat;

/// Whether a path looks like a model: a .gguf file, or a folder with a config.json. Loading it shows whether it is one.
bool isModel(const QString& path);

class SessionForm final : public QWidget {
    Q_OBJECT
public:
    explicit SessionForm(QWidget* parent = nullptr);
    ~SessionForm() override;

    QString modelName() const; // name of an embedded model, or a path
    bool hasModel() const;     // whether the chosen model is loaded
    /// Chooses this model as if the user had picked it from the list, and emits modelRequested.
    void chooseModel(const QString& nameOrPath);
    /// Takes the loaded model and sets the defaults of the parameters to those of the model.
    void setModel(const QString& nameOrPath, std::shared_ptr<const Model> model);
    /// Shows below the choice of the model why it could not be loaded.
    void setModelProblem(const QString& sentence);
    QString modelProblem() const { return chosen_.problem; }
    /// Shows above the Run button why a session failed.
    void setRunProblem(const QString& sentence);
    void setRunning(bool running);

    /// Why no session can be started; empty if one can.
    QString problem() const { return problem_; }
    /// Why what the form holds can neither be run nor queued; empty if it can.
    QString requestProblem() const { return requestProblem_; }
    SessionRequest request() const;
    std::shared_ptr<const Model> model() const; // the chosen one; null: it is not loaded
    int promptTokens() const;                   // of the longest prompt; 0: they are being counted

    /// Takes a text file that the user dropped on the prompt as the prompt. `over`: the widget on which the file was
    /// dropped.
    /// @return false if the file was dropped elsewhere or is no text
    bool takePrompt(const QString& file, const QWidget* over);

    QVariantMap values() const;
    void setValues(const QVariantMap& values);
    /// Takes all that a recorded run says of itself, but for its model, which is loaded already, and offers to run it.
    /// @return what this form cannot hold as it was recorded: one sentence, and the form is not to be run; else empty
    QString fill(const SessionToRepeat& recorded);
    /// Takes method, settings, memory and link of a session that a tuning has chosen, and its prompt.
    void fill(const SessionOptions& chosen, const NeedleOptions& needle, int sequences);

public slots:
    void run();        // emits runRequested if there is no problem
    void addToQueue(); // emits queueRequested if requestProblem() is empty
    void sweep();      // emits sweepRequested if requestProblem() is empty

signals:
    void modelRequested(const QString& nameOrPath);
    void runRequested(const kvscope::ui::SessionRequest& request);
    void queueRequested(const kvscope::ui::SessionRequest& request);
    void sweepRequested();
    void problemChanged();

private:
    static constexpr int kMostSequences = 32; // the most that can be asked for; a recorded prompt may have more

    void makeModelSection(QVBoxLayout* layout);
    void makePromptSection(QVBoxLayout* layout);
    void makeMethodSection(QVBoxLayout* layout);
    void modelPicked(int index);
    void listModel(const QString& nameOrPath);
    void showModelPage();
    void showMethod();
    void rememberSettings();
    void revalidate();
    QString findProblem();
    void proposeForecast(const MethodEntry& entry, const ParameterValues& values);
    const MethodEntry& method() const;
    SessionOptions options() const;
    QVariantMap valuesOf(const SessionOptions& options) const;
    QString findDifference(const SessionToRepeat& recorded) const;

    struct ChosenModel {
        QString name;    // a name or a path
        QString problem; // why it could not be loaded; empty: nothing is known against it
        std::shared_ptr<const Model> loaded;
        QString loadedName; // of `loaded`, which may still be the model chosen before
    };

    // Model
    QComboBox* model_ = nullptr;
    MutedLabel* modelFacts_ = nullptr;
    InlineMessage* modelMessage_ = nullptr;
    QToolButton* modelDetails_ = nullptr;
    ModelPage* modelPage_ = nullptr; // made when the user first opens it
    SessionBackend* backend_ = nullptr;
    // Prompt
    PromptEditor* prompt_ = nullptr;
    QSpinBox *sequences_ = nullptr, *maxNewTokens_ = nullptr;
    // Method
    QComboBox* method_ = nullptr;
    MutedLabel *methodSummary_ = nullptr, *budget_ = nullptr, *forecastNote_ = nullptr;
    ParameterPanel* parameters_ = nullptr;
    InlineMessage* parameterMessage_ = nullptr;

    SessionAdvanced* advanced_ = nullptr;
    SessionFooter* footer_ = nullptr;

    ChosenModel chosen_;
    QString problem_, requestProblem_;
    QString shownMethod_; // the method whose parameters the panel shows
    /// By method, the parameters that the user changed.
    QMap<QString, std::vector<std::pair<std::string, std::string>>> settings_;
    bool running_ = false, loading_ = false;
    // the Run button takes the focus when the tokens of the prompt that fill() brought are counted
    bool runTakesFocus_ = false;
};

} // namespace kvscope::ui
