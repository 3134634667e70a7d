#include "ui/widgets/session_backend.h"

#include "base/error.h"
#include "ui/widgets/form_helpers.h"

#include <QComboBox>
#include <QCoreApplication>
#include <QPointer>
#include <QThreadPool>
#include <QVBoxLayout>

namespace kvscope::ui {

SessionBackend::SessionBackend(QVBoxLayout* body, QObject* parent) : QObject(parent) {
    box_ = named(new QComboBox, "backend",
                 tr("The CPU models the link's time; a GPU moves blocks over PCIe and measures it."));
    box_->setAccessibleName(tr("Run on"));
    box_->addItem(tr("Run on the CPU"), int(Backend::Cpu));
    box_->addItem(tr("Run on an NVIDIA GPU"), int(Backend::Cuda));
    body->addWidget(box_);
    facts_ = addMuted(body, "backendFacts");
    facts_->hide();
    connect(box_, &QComboBox::currentIndexChanged, this, &SessionBackend::choose);
}

Backend SessionBackend::backend() const { return Backend(box_->currentData().toInt()); }

QVariant SessionBackend::value() const { return box_->currentData(); }

void SessionBackend::setValue(const QVariant& value) { chooseData(box_, value); }

void SessionBackend::choose() {
    const bool gpu = backend() == Backend::Cuda;
    facts_->setVisible(gpu);
    emit chosen(backend());
    if (!gpu || asked_) return;
    asked_ = true;
    facts_->setText(tr("Looking for a GPU…"));
    // Opening the GPU driver takes a while, so it is done on a worker thread.
    QThreadPool::globalInstance()->start([this, guard = QPointer<SessionBackend>(this)] {
        QString text, problem;
        try {
            text = QString::fromStdString(describeGpu());
        } catch (const Error& error) {
            problem = QString::fromStdString(oneLine(error));
        }
        QMetaObject::invokeMethod(
            QCoreApplication::instance(),
            [this, guard, text, problem] {
                if (!guard) return;
                facts_->setText(problem.isEmpty() ? text : tr("No GPU was found"));
                problem_ = problem;
                emit found();
            },
            Qt::QueuedConnection);
    });
}

} // namespace kvscope::ui
