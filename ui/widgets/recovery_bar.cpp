#include "ui/widgets/recovery_bar.h"

#include "ui/frame/as_written.h"
#include "ui/look/theme.h"

#include <QFrame>
#include <QHBoxLayout>
#include <QLabel>
#include <QPainter>
#include <QPushButton>
#include <QVBoxLayout>

namespace kvscope::ui {

namespace {

constexpr int kLeastButton = 88; // pixels; with the same least width, the buttons of several lines are aligned

/// One offer, drawn in the accent colour to show that it wants an answer.
class Line final : public QFrame {
public:
    using QFrame::QFrame;

protected:
    void paintEvent(QPaintEvent*) override {
        const QColor tone = Theme::current().accent;
        QColor wash = tone;
        wash.setAlphaF(0.12F);
        QPainter painter(this);
        painter.fillRect(rect(), wash);
        painter.fillRect(QRect(0, 0, 3, height()), tone);
    }
};

} // namespace

RecoveryBar::RecoveryBar(QWidget* parent) : QWidget(parent), column_(new QVBoxLayout(this)) {
    setObjectName(QStringLiteral("recovery"));
    setAccessibleName(tr("Recovered after a crash"));
    column_->setContentsMargins(0, 0, 0, 0);
    column_->setSpacing(1);
    hide();
}

QWidget* RecoveryBar::offer(const QString& text, const QString& help, const std::vector<Choice>& choices) {
    auto* line = new Line;
    line->setObjectName(QStringLiteral("recoveryOffer"));
    auto* row = new QHBoxLayout(line);
    row->setContentsMargins(14, 5, 8, 5);
    row->setSpacing(8);
    auto* label = new QLabel(text);
    label->setTextFormat(Qt::PlainText); // a name in the text may look like markup
    label->setWordWrap(true);
    label->setToolTip(asWritten(help));
    row->addWidget(label, 1);
    for (std::size_t i = 0; i < choices.size(); ++i) {
        auto* button = new QPushButton(choices[i].text);
        button->setObjectName(QStringLiteral("recoveryChoice%1").arg(i));
        button->setToolTip(choices[i].help);
        button->setMinimumWidth(kLeastButton);
        button->setAccessibleName(QStringLiteral("%1: %2").arg(choices[i].text, text));
        row->addWidget(button);
        connect(button, &QPushButton::clicked, this, [this, line, act = choices[i].act] {
            if (act()) withdraw(line);
        });
    }
    column_->addWidget(line);
    ++offers_;
    show();
    return line;
}

void RecoveryBar::withdraw(QWidget* line) {
    if (line->isHidden()) return; // the line was withdrawn before
    line->hide();
    line->setObjectName({});
    line->deleteLater(); // a button of the line may be what called this
    setVisible(--offers_ > 0);
}

} // namespace kvscope::ui
