// The choices of a server that is started from the desktop: preset, model and method, memory, address, trace, and every
// knob of the scheduler.
#pragma once

#include "core/plan/backend.h"
#include "core/plan/selection_spec.h"
#include "core/select/method.h"
#include "ui/session/server_process.h"
#include "ui/widgets/serve_preset.h"

#include <QScrollArea>
#include <QString>
#include <QVariantMap>

#include <memory>

class QComboBox;
class QLineEdit;
class QSpinBox;
class QToolButton;
class QVBoxLayout;

namespace kvscope {
class Model;
}

namespace kvscope::ui {

class MutedLabel;
class ParameterPanel;
class Section;

class ServeForm final : public QScrollArea {
    Q_OBJECT
public:
    explicit ServeForm(QWidget* parent = nullptr);

    /// Takes a model that is loaded: its parameters have the model's defaults then. choose: chooses it, unless the user
    /// has chosen another one here
    void setModel(const QString& nameOrPath, std::shared_ptr<const Model> model, bool choose);
    /// Whether the trace says where the model lies.
    void setRecordModelPath(bool record) { recordModelPath_ = record; }

    /// Why no server can be started with these choices; empty if one can. A model that is not loaded here is examined
    /// by the server.
    QString problem() const;
    ServerRequest request() const;

    /// What is chosen, to be remembered.
    QVariantMap values() const;
    void setValues(const QVariantMap& values);

signals:
    void changed();

private:
    void makePreset(QVBoxLayout* layout);
    void makeModel(QVBoxLayout* layout);
    void makeMemory(QVBoxLayout* layout);
    void makeAddress(QVBoxLayout* layout);
    void makeKnobs(QVBoxLayout* layout);
    void pickModel(int index);
    void chooseKeyFile();
    void listMethods();
    void showMethod();
    void applyPreset();
    void edited();
    void changedByUser();
    QString findRefusalOfMethod() const;
    QString findRefusalOfKnobs() const;
    QString findRefusalOfAddress() const;
    QString modelName() const;
    Backend backend() const;
    const MethodEntry& method() const;
    /// The model that is chosen if it is loaded here, else null.
    const Model* known() const;
    ParameterValues valuesFor(const Model& model) const;

    std::shared_ptr<const Model> loaded_;
    QString loadedName_, pickedName_, shownMethod_;
    const Model* shownModel_ = nullptr; // whose defaults the parameters have
    bool recordModelPath_ = true, modelPicked_ = false, applying_ = false;

    QComboBox *preset_ = nullptr, *model_ = nullptr, *backend_ = nullptr, *method_ = nullptr, *record_ = nullptr;
    MutedLabel *presetNote_ = nullptr, *modelNote_ = nullptr, *methodSummary_ = nullptr;
    ParameterPanel *parameters_ = nullptr, *knobs_ = nullptr;
    Section* knobSection_ = nullptr;
    QSpinBox *threads_ = nullptr, *device_ = nullptr, *host_ = nullptr, *scratch_ = nullptr, *port_ = nullptr;
    QLineEdit *address_ = nullptr, *keyFile_ = nullptr;
    QToolButton* browse_ = nullptr;
};

} // namespace kvscope::ui
