// A dialog that starts long work on the loaded model and shows how far it is: options on the left below a title, what
// comes of them on the right, and below both the messages, the progress and the buttons. It is not modal.
#pragma once

#include <QDialog>

#include <initializer_list>
#include <memory>

class QLabel;
class QProgressBar;
class QPushButton;
class QVBoxLayout;

namespace kvscope {
class Model;
}

namespace kvscope::ui {

class InlineMessage;
class MutedLabel;
struct Theme;

class ModelWorkDialog : public QDialog {
    Q_OBJECT
public:
    virtual void applyTheme(const Theme& theme) = 0;

protected:
    /// `name`: what the object names of the dialog's widgets begin with.
    ModelWorkDialog(const QString& name, const QString& title, QWidget* parent);

    /// The label that says what is done with which model.
    QLabel* makeTitle();
    /// Lays the two columns out, with what is added below them. Call it once, when both have their widgets.
    QVBoxLayout* layOut(QVBoxLayout* left, QVBoxLayout* right);
    /// The end of the dialog: the message, the progress, and the buttons `more`, "Cancel" and `start`.
    void addFooter(QVBoxLayout* layout, const QString& start, const QString& progressTitle, const QString& cancelHelp,
                   std::initializer_list<QPushButton*> more = {});
    QString nameOf(const char* part) const { return objectName_ + QLatin1String(part); }

    virtual void start() = 0;  // "Start" was pressed
    virtual void cancel() = 0; // "Cancel" was pressed
    /// Enables what can be used now.
    virtual void refresh() = 0;
    void showFraction(double done);
    /// The work has ended without a result, because the user cancelled it or because it failed.
    void showCancelled(const QString& sentence);
    void showFailed(const QString& sentence);
    void changeEvent(QEvent* event) override;

    QString modelName_; // as the session form names it
    std::shared_ptr<const Model> model_;
    QLabel* title_ = nullptr;
    MutedLabel* what_ = nullptr; // what is being done, or what has come of it
    InlineMessage* message_ = nullptr;
    QPushButton *start_ = nullptr, *cancel_ = nullptr;

private:
    QString objectName_;
    QProgressBar* bar_ = nullptr;
};

} // namespace kvscope::ui
