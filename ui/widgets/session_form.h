// Everything a run needs, chosen by a person: model, prompt, method with its declared parameters, sampling, device,
// link.
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

class QCheckBox;
class QComboBox;
class QDoubleSpinBox;
class QFormLayout;
class QPushButton;
class QSpinBox;
class QToolButton;
class QVBoxLayout;

namespace kvscope::ui {

class InlineMessage;
class ModelPage;
class MutedLabel;
class ParameterPanel;
class PromptEditor;
class Section;
struct RecordedSession;

/// Whether a file or folder is meant as a model: GGUF, or a checkpoint with its config.json. Its content decides later.
bool isModel(const QString& path);

class SessionForm final : public QWidget {
    Q_OBJECT
public:
    explicit SessionForm(QWidget* parent = nullptr);
    ~SessionForm() override;

    QString modelName() const; // embedded name or path
    bool hasModel() const;     // that one is loaded
    /// Asks for it, as if it were chosen from the list.
    void chooseModel(const QString& nameOrPath);
    /// The loaded model; the parameters' defaults come from it.
    void setModel(const QString& nameOrPath, std::shared_ptr<const Model> model);
    /// Shown where the model is chosen.
    void setModelProblem(const QString& sentence);
    QString modelProblem() const { return modelProblem_; }
    /// Shown above the Run button; a session failed.
    void setRunProblem(const QString& sentence);
    void setRunning(bool running);

    /// Why Run is not possible; empty when it is.
    QString problem() const { return problem_; }
    SessionRequest request() const;

    /// A text file that was dropped on the prompt becomes the prompt. @return false: it was not meant for it
    bool takePrompt(const QString& file, const QWidget* over);

    QVariantMap values() const;
    void setValues(const QVariantMap& values);
    /// Takes all that a recorded run says of itself, but for its model, which is loaded already, and offers to run it.
    /// @return what this form cannot hold as it was recorded: one sentence, and the form is not to be run; else empty
    QString fill(const RecordedSession& recorded);

public slots:
    void run(); // emits runRequested unless there is a problem

signals:
    void modelRequested(const QString& nameOrPath);
    void runRequested(const kvscope::ui::SessionRequest& request);
    void problemChanged();

private:
    static constexpr int kMostSequences = 32; // that can be asked for; a recorded prompt may have more

    void makeModelSection(QVBoxLayout* layout);
    void makePromptSection(QVBoxLayout* layout);
    void makeMethodSection(QVBoxLayout* layout);
    void makeAdvancedSection(QVBoxLayout* layout);
    void makeFooter(QVBoxLayout* layout);
    void modelPicked(int index);
    void listModel(const QString& nameOrPath);
    QString askForModel(bool file); // or folder; empty: none
    void chooseBackend();
    void showRecordGpu();
    void showModelPage();
    void showMethod();
    void rememberSettings();
    void revalidate();
    QString findProblem();
    const MethodEntry& method() const;
    SessionOptions options() const;
    QString findDifference(const RecordedSession& recorded) const;

    QComboBox *model_ = nullptr, *method_ = nullptr, *link_ = nullptr, *level_ = nullptr, *cachePolicy_ = nullptr,
              *backend_ = nullptr, *pcieCounting_ = nullptr;
    MutedLabel *modelFacts_ = nullptr, *backendFacts_ = nullptr, *methodSummary_ = nullptr, *budget_ = nullptr,
               *estimate_ = nullptr;
    InlineMessage *modelMessage_ = nullptr, *parameterMessage_ = nullptr, *runMessage_ = nullptr;
    PromptEditor* prompt_ = nullptr;
    ParameterPanel* parameters_ = nullptr;
    QSpinBox *sequences_ = nullptr, *maxNewTokens_ = nullptr, *topK_ = nullptr, *seed_ = nullptr,
             *deviceSlots_ = nullptr;
    QDoubleSpinBox *temperature_ = nullptr, *topP_ = nullptr, *linkGbps_ = nullptr;
    QCheckBox *oracle_ = nullptr, *recordGpu_ = nullptr, *recordCalls_ = nullptr, *stopAtEos_ = nullptr,
              *offload_ = nullptr;
    Section* advanced_ = nullptr;
    MutedLabel* reason_ = nullptr;
    QPushButton* run_ = nullptr;
    QToolButton* modelDetails_ = nullptr;
    ModelPage* modelPage_ = nullptr; // made when it is first asked for

    std::shared_ptr<const Model> loaded_;
    QString loadedName_, pickedName_, modelProblem_, backendProblem_, problem_;
    QString shownMethod_;                                                      // whose parameters the panel shows
    QMap<QString, std::vector<std::pair<std::string, std::string>>> settings_; // of every method touched
    bool running_ = false, loading_ = false, backendAsked_ = false;
};

} // namespace kvscope::ui
