// The server that the window starts: its dialog, and its trace, which is opened while it grows.
#include "ui/session/session_controller.h"
#include "ui/widgets/serve_dialog.h"
#include "ui/widgets/session_form.h"
#include "ui/window/main_window.h"
#include "ui/window/window_server.h"

namespace kvscope::ui {

void MainWindow::connectServer() {
    served_ = new WindowServer(*status_, this);
    connect(served_, &WindowServer::clicked, this, &MainWindow::showServeDialog);
    connect(served_, &WindowServer::recording, this, [this](const QString& trace) {
        showView(QStringLiteral("serving"));
        openFiles({trace});
    });
}

ServerProcess& MainWindow::server() { return served_->process(); }

void MainWindow::setServerProgram(const QString& program) { served_->setProgram(program); }

void MainWindow::showServeDialog() {
    auto* dialog = findChild<ServeDialog*>();
    if (dialog == nullptr) {
        dialog = new ServeDialog(served_->process(), this);
        dialog->setValues(saved_.server);
    }
    dialog->setRecordModelPath(saved_.modelPath);
    dialog->setModel(form_->modelName(), form_->hasModel() ? controller_->model() : nullptr);
    dialog->show();
    dialog->raise();
    dialog->activateWindow();
}

} // namespace kvscope::ui
