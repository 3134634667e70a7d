// The dialog that tunes, and the session that runs its choice.
#include "profiler/tune/tune.h"
#include "ui/session/session_controller.h"
#include "ui/widgets/session_form.h"
#include "ui/widgets/tune_dialog.h"
#include "ui/window/main_window.h"
#include "ui/window/panels.h"

namespace kvscope::ui {

void MainWindow::showTuneDialog() {
    auto* dialog = findChild<TuneDialog*>();
    if (dialog == nullptr) {
        dialog = new TuneDialog(this);
        connect(dialog, &TuneDialog::runRequested, this, &MainWindow::runTuned);
    }
    dialog->setModel(form_->modelName(), form_->hasModel() ? controller_->model() : nullptr);
    dialog->show();
    dialog->raise();
    dialog->activateWindow();
}

/// Fills the session form with the row's method, memory and link, and runs it on a needle prompt of the tuned length.
void MainWindow::runTuned(const TuneResult& result, std::size_t row) {
    if (session_.active) return showMessage(tr("A session is running. Stop it or wait for its end."), true);
    const QString model = QString::fromStdString(result.modelPath);
    if (!form_->hasModel() || form_->modelName() != model)
        return showMessage(tr("Choose the model %1 in the session form first: it was tuned.").arg(model), true);
    SessionOptions options;
    options.backend = result.request.backend;
    options.link = result.request.link;
    options.maxNewTokens = result.request.newTokens;
    NeedleOptions needle;
    needle.tokens = result.context;
    form_->fill(sessionOf(result.rows[row].candidate, options), needle, result.request.batch);
    panels_->show(Panel::Session);
    runWhenReady();
}

} // namespace kvscope::ui
