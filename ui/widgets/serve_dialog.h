// The dialog that starts a server: `kvscope-cli serve` as a child process that records while it answers. The user
// chooses model, method, budgets, address and the scheduler's knobs, or a preset, and sees what the server says. The
// dialog is not modal: the window behind it shows the trace while it grows.
#pragma once

#include "ui/session/server_process.h"

#include "core/select/method.h"

#include <QDialog>
#include <QVariantMap>

#include <memory>

class QComboBox;
class QFormLayout;
class QLabel;
class QLineEdit;
class QPlainTextEdit;
class QPushButton;
class QSpinBox;
class QToolButton;
class QVBoxLayout;

namespace kvscope {
class Model;
}

namespace kvscope::ui {

class InlineMessage;
class MutedLabel;
class ParameterPanel;
class Section;

class ServeDialog final : public QDialog {
    Q_OBJECT
public:
    /// The server outlives the dialog.
    explicit ServeDialog(ServerProcess& server, QWidget* parent = nullptr);

    /// Takes the model that the session form has loaded: its parameters have the model's defaults then. Chooses it
    /// unless the user has chosen another one here.
    void setModel(const QString& nameOrPath, std::shared_ptr<const Model> model);
    /// Whether the trace says where the model lies.
    void setRecordModelPath(bool record) { recordModelPath_ = record; }

    /// Why no server can be started; empty if one can. A model that is not loaded here is examined by the server.
    QString problem() const { return problem_; }
    ServerRequest request() const;

    /// What is chosen, to be remembered.
    QVariantMap values() const;
    void setValues(const QVariantMap& values);

protected:
    void changeEvent(QEvent* event) override;

private:
    enum class Preset : std::uint8_t { Defaults, SparseServe, Own };

    QWidget* makeChoices();
    void makePreset(QVBoxLayout* layout);
    void makeModel(QVBoxLayout* layout);
    void makeMemory(QVBoxLayout* layout);
    void makeAddress(QVBoxLayout* layout);
    void makeKnobs(QVBoxLayout* layout);
    QWidget* makeServer();
    QWidget* makeAddressRow(QLineEdit*& line, QPushButton*& copy, const char* name, const QString& title);
    void makeFooter(QVBoxLayout* layout);
    void pickModel(int index);
    void listModel(const QString& nameOrPath);
    void chooseKeyFile();
    void listMethods();
    void showMethod();
    void applyPreset();
    void edited();
    void revalidate();
    void showServer();
    QString findProblem() const;
    QString findRefusalOfMethod() const;
    QString findRefusalOfKnobs() const;
    QString modelName() const;
    Backend backend() const;
    const MethodEntry& method() const;
    /// The model that is chosen if it is loaded here, else null.
    const Model* known() const;
    SelectionSpec specOf(const Model& model) const;

    ServerProcess& server_;
    std::shared_ptr<const Model> loaded_;
    QString loadedName_, pickedName_, shownMethod_, problem_;
    const Model* shownModel_ = nullptr; // whose defaults the parameters have
    bool recordModelPath_ = true, modelPicked_ = false, applying_ = false;

    QComboBox *preset_ = nullptr, *model_ = nullptr, *backend_ = nullptr, *method_ = nullptr, *record_ = nullptr;
    MutedLabel *presetNote_ = nullptr, *modelNote_ = nullptr, *methodSummary_ = nullptr, *reason_ = nullptr,
               *sentence_ = nullptr;
    ParameterPanel *parameters_ = nullptr, *knobs_ = nullptr;
    Section* knobSection_ = nullptr;
    QSpinBox *threads_ = nullptr, *device_ = nullptr, *host_ = nullptr, *scratch_ = nullptr, *port_ = nullptr;
    QLineEdit *address_ = nullptr, *keyFile_ = nullptr, *url_ = nullptr, *curl_ = nullptr;
    QToolButton* browse_ = nullptr;
    QLabel *dot_ = nullptr, *state_ = nullptr;
    QPlainTextEdit* log_ = nullptr;
    QPushButton *start_ = nullptr, *stop_ = nullptr, *copyUrl_ = nullptr, *copyCurl_ = nullptr;
    QWidget* choices_ = nullptr;
};

} // namespace kvscope::ui
