// The dialog that starts a server: `kvscope-cli serve` as a child process that records while it answers. The user
// chooses model, method, budgets, address and the scheduler's knobs, or a preset, and sees what the server says. The
// dialog is not modal: the window behind it shows the trace while it grows.
#pragma once

#include "ui/session/server_process.h"

#include <QDialog>
#include <QVariantMap>

#include <memory>

class QLabel;
class QLineEdit;
class QPlainTextEdit;
class QPushButton;
class QVBoxLayout;

namespace kvscope {
class Model;
}

namespace kvscope::ui {

class MutedLabel;
class ServeForm;

class ServeDialog final : public QDialog {
    Q_OBJECT
public:
    /// The server outlives the dialog.
    explicit ServeDialog(ServerProcess& server, QWidget* parent = nullptr);

    /// Takes the model that the session form has loaded: its parameters have the model's defaults then. Chooses it
    /// unless the user has chosen another one here.
    void setModel(const QString& nameOrPath, std::shared_ptr<const Model> model);
    /// Whether the trace says where the model lies.
    void setRecordModelPath(bool record);

    /// Why no server can be started; empty if one can. A model that is not loaded here is examined by the server.
    QString problem() const { return problem_; }
    ServerRequest request() const;

    /// What is chosen, to be remembered.
    QVariantMap values() const;
    void setValues(const QVariantMap& values);

protected:
    void changeEvent(QEvent* event) override;

private:
    QWidget* makeServer();
    QWidget* makeAddressRow(QLineEdit*& line, QPushButton*& copy, const char* name, const QString& title);
    void makeFooter(QVBoxLayout* layout);
    void revalidate();
    void showServer();
    QString findProblem() const;

    ServerProcess& server_;
    QString problem_;
    ServeForm* form_ = nullptr;
    MutedLabel *reason_ = nullptr, *sentence_ = nullptr;
    QLineEdit *url_ = nullptr, *curl_ = nullptr;
    QLabel *dot_ = nullptr, *state_ = nullptr;
    QPlainTextEdit* log_ = nullptr;
    QPushButton *start_ = nullptr, *stop_ = nullptr, *copyUrl_ = nullptr, *copyCurl_ = nullptr;
};

} // namespace kvscope::ui
