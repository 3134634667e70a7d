#include "ui/widgets/import_bar.h"

#include "base/error.h"
#include "profiler/import/import.h"
#include "ui/frame/as_written.h"
#include "ui/frame/small_widgets.h"

#include <QFileInfo>
#include <QHBoxLayout>
#include <QLabel>
#include <QProgressBar>
#include <QToolButton>

#include <cmath>
#include <utility>

namespace kvscope::ui {

ImportBar::ImportBar(QWidget* parent)
    : QWidget(parent), what_(new MutedLabel), bar_(new QProgressBar), stop_(new QToolButton) {
    setObjectName(QStringLiteral("importBar"));
    bar_->setObjectName(QStringLiteral("importProgress"));
    bar_->setAccessibleName(tr("Progress of the import"));
    bar_->setRange(0, 1000);
    bar_->setTextVisible(false);
    bar_->setFixedSize(160, 6);
    stop_->setObjectName(QStringLiteral("importCancel"));
    stop_->setText(tr("Cancel"));
    stop_->setToolTip(tr("Stop importing; nothing is kept of what was converted so far"));
    auto* row = new QHBoxLayout(this);
    row->setContentsMargins(4, 0, 4, 0);
    row->addWidget(what_);
    row->addWidget(bar_);
    row->addWidget(stop_);
    connect(stop_, &QToolButton::clicked, this, &ImportBar::cancel);
    hide();
}

ImportBar::~ImportBar() {
    if (!worker_.joinable()) return;
    worker_.request_stop();
    worker_.join();
}

bool ImportBar::isNeededFor(const QString& path) { return needsImport(path.toStdString()); }

void ImportBar::add(const QString& path) {
    if (path == current_ || waiting_.contains(path)) return;
    waiting_ << path;
    if (current_.isEmpty()) startNext();
}

void ImportBar::startNext() {
    if (waiting_.isEmpty()) {
        hide();
        return;
    }
    current_ = waiting_.takeFirst();
    what_->setText(tr("Importing %1").arg(QFileInfo(current_).fileName()));
    bar_->setValue(0);
    show();
    worker_ = std::jthread([this, path = current_.toStdString()](const std::stop_token& stop) {
        QString sentence;
        bool wasCancelled = false;
        int shown = -1;
        try {
            importIntoCache(
                path,
                [&](double fraction, std::string_view what) {
                    const int value = int(std::lround(fraction * 1000));
                    if (value == std::exchange(shown, value)) return; // the bar would not move
                    QMetaObject::invokeMethod(this,
                                              [this, value, text = QString::fromUtf8(what.data(), int(what.size()))] {
                                                  bar_->setValue(value);
                                                  bar_->setToolTip(asWritten(text));
                                              });
                },
                stop);
        } catch (const Error& error) {
            wasCancelled = error.kind == ErrorKind::Cancelled;
            sentence = QString::fromStdString(oneLine(error));
        } catch (const std::exception& error) {
            sentence =
                tr("%1 cannot be imported: %2").arg(QString::fromStdString(path), QString::fromUtf8(error.what()));
        }
        QMetaObject::invokeMethod(this, [this, sentence, wasCancelled] { finish(sentence, wasCancelled); });
    });
}

void ImportBar::finish(const QString& sentence, bool wasCancelled) {
    worker_.join();
    const QString path = std::exchange(current_, {});
    if (wasCancelled)
        emit cancelled(path);
    else if (sentence.isEmpty())
        emit imported(path);
    else
        emit failed(path, sentence);
    startNext();
}

void ImportBar::cancel() {
    waiting_.clear();
    if (worker_.joinable()) worker_.request_stop();
}

} // namespace kvscope::ui
