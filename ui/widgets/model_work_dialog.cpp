#include "ui/widgets/model_work_dialog.h"

#include "ui/frame/small_widgets.h"
#include "ui/look/theme.h"
#include "ui/widgets/form_helpers.h"

#include <QEvent>
#include <QHBoxLayout>
#include <QLabel>
#include <QProgressBar>
#include <QPushButton>
#include <QVBoxLayout>

#include <cmath>

namespace kvscope::ui {

ModelWorkDialog::ModelWorkDialog(const QString& name, const QString& title, QWidget* parent)
    : QDialog(parent), objectName_(name) {
    setObjectName(nameOf("Dialog"));
    setWindowTitle(title);
}

QLabel* ModelWorkDialog::makeTitle() {
    title_ = new QLabel;
    title_->setObjectName(nameOf("Title"));
    title_->setTextFormat(Qt::PlainText);
    QFont bold = title_->font();
    bold.setBold(true);
    title_->setFont(bold);
    return title_;
}

QVBoxLayout* ModelWorkDialog::layOut(QVBoxLayout* left, QVBoxLayout* right) {
    auto* columns = new QHBoxLayout;
    columns->addLayout(left);
    columns->addLayout(right, 1);
    columns->setSpacing(16);
    auto* layout = new QVBoxLayout(this);
    layout->setContentsMargins(16, 14, 16, 14);
    layout->setSpacing(12);
    layout->addLayout(columns, 1);
    return layout;
}

void ModelWorkDialog::addFooter(QVBoxLayout* layout, const QString& start, const QString& progressTitle,
                                const QString& cancelHelp, std::initializer_list<QPushButton*> more) {
    message_ = new InlineMessage;
    message_->setObjectName(nameOf("Message"));
    layout->addWidget(message_);
    bar_ = new QProgressBar;
    bar_->setObjectName(nameOf("Progress"));
    bar_->setAccessibleName(progressTitle);
    bar_->setRange(0, 1000);
    bar_->setTextVisible(false);
    bar_->setFixedHeight(6);
    layout->addWidget(bar_);
    what_ = new MutedLabel;
    what_->setObjectName(nameOf("What"));
    const auto button = [this](const char* part, const QString& text, const QString& help) {
        return named(new QPushButton(text), nameOf(part).toLatin1().constData(), help);
    };
    start_ = button("Start", start, {});
    start_->setDefault(true);
    cancel_ = button("Cancel", tr("Cancel"), cancelHelp);
    connect(start_, &QPushButton::clicked, this, [this] { this->start(); });
    connect(cancel_, &QPushButton::clicked, this, [this] { cancel(); });
    auto* row = new QHBoxLayout;
    row->addWidget(what_, 1);
    for (QPushButton* each : more) row->addWidget(each);
    row->addWidget(cancel_);
    row->addWidget(start_);
    layout->addLayout(row);
}

void ModelWorkDialog::showFraction(double done) { bar_->setValue(int(std::lround(1000 * done))); }

void ModelWorkDialog::showCancelled(const QString& sentence) {
    what_->setText(sentence);
    showFraction(0);
    refresh();
}

void ModelWorkDialog::showFailed(const QString& sentence) {
    what_->clear();
    showFraction(0);
    message_->show(InlineMessage::Kind::Error, sentence);
    refresh();
}

void ModelWorkDialog::changeEvent(QEvent* event) {
    QDialog::changeEvent(event);
    if (event->type() == QEvent::PaletteChange && bar_ != nullptr) applyTheme(Theme::current());
}

} // namespace kvscope::ui
