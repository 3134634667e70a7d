#include "ui/frame/small_widgets.h"

#include "ui/look/theme.h"

#include <QApplication>
#include <QEvent>
#include <QHBoxLayout>
#include <QPainter>
#include <QScrollArea>
#include <QScrollBar>
#include <QSpinBox>
#include <QVBoxLayout>

namespace kvscope::ui {

Section::Section(const QString& title, bool expanded, QWidget* parent)
    : QWidget(parent), header_(new QToolButton(this)), content_(new QWidget(this)), body_(new QVBoxLayout(content_)) {
    header_->setText(title);
    header_->setCheckable(true);
    header_->setAutoRaise(true);
    header_->setToolButtonStyle(Qt::ToolButtonTextBesideIcon);
    header_->setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Fixed); // a long title must not widen its panel
    // The section's header looks like a heading and not like a button: it has no fill in any state.
    header_->setStyleSheet(
        QStringLiteral("QToolButton, QToolButton:hover, QToolButton:pressed, QToolButton:checked { background: "
                       "transparent; border: none; padding: 5px 0px; font-weight: 600; } "
                       "QToolButton:focus { text-decoration: underline; }"));
    body_->setContentsMargins(4, 0, 4, 8);
    body_->setSpacing(6);
    auto* layout = new QVBoxLayout(this);
    layout->setContentsMargins(0, 0, 0, 0);
    layout->setSpacing(2);
    layout->addWidget(header_);
    layout->addWidget(content_);
    const auto apply = [this](bool open) {
        header_->setArrowType(open ? Qt::DownArrow : Qt::RightArrow);
        content_->setVisible(open);
    };
    connect(header_, &QToolButton::toggled, this, [this, apply](bool open) {
        apply(open);
        emit toggled(open);
    });
    header_->setChecked(expanded);
    apply(expanded);
}

void Section::paintEvent(QPaintEvent*) {
    QPainter painter(this);
    painter.fillRect(QRect(0, 0, width(), 1), Theme::current().border);
}

DockTitle::DockTitle(const QString& title, QWidget* beside, QWidget* parent) : QWidget(parent) {
    auto* label = new QLabel(title);
    label->setStyleSheet(QStringLiteral("font-weight: 600;"));
    auto* close = new QToolButton;
    close->setText(QStringLiteral("×"));
    close->setAutoRaise(true);
    close->setFocusPolicy(Qt::NoFocus);
    close->setToolTip(tr("Hide; the View menu brings it back"));
    close->setAccessibleName(tr("Hide %1").arg(title));
    close->setStyleSheet(QStringLiteral("padding: 0px 5px;"));
    auto* layout = new QHBoxLayout(this);
    layout->setContentsMargins(12, 5, 5, 5);
    layout->addWidget(label, beside ? 0 : 1);
    if (beside) layout->addWidget(beside, 1);
    layout->addWidget(close);
    connect(close, &QToolButton::clicked, this, &DockTitle::closeRequested);
}

namespace {

/// Stands where it was left. Qt takes the focus from a page that goes out of sight, and QScrollArea then scrolls to
/// what had it: a page whose plot had the focus came back without its first lines.
class PageScroll final : public QScrollArea {
protected:
    bool focusNextPrevChild(bool next) override {
        const QPoint before(horizontalScrollBar()->value(), verticalScrollBar()->value());
        const bool moved = QScrollArea::focusNextPrevChild(next);
        const QWidget* focused = QApplication::focusWidget();
        if (!focused || !isAncestorOf(focused)) {
            horizontalScrollBar()->setValue(before.x());
            verticalScrollBar()->setValue(before.y());
        }
        return moved;
    }
};

} // namespace

QScrollArea* makePageScroll() {
    auto* scroll = new PageScroll;
    scroll->setWidgetResizable(true);
    scroll->setFrameShape(QFrame::NoFrame);
    scroll->setFocusPolicy(Qt::NoFocus);
    return scroll;
}

InlineMessage::InlineMessage(QWidget* parent, bool dismissable)
    : QFrame(parent), text_(new QLabel(this)), dismiss_(new QToolButton(this)) {
    text_->setTextFormat(Qt::PlainText); // text from a file may look like markup
    text_->setWordWrap(true);
    text_->setTextInteractionFlags(Qt::TextSelectableByMouse);
    dismiss_->setAutoRaise(true);
    dismiss_->setText(QStringLiteral("×"));
    dismiss_->setToolTip(tr("Hide this message"));
    dismiss_->setAccessibleName(tr("Hide this message"));
    dismiss_->setVisible(dismissable);
    auto* layout = new QHBoxLayout(this);
    layout->setContentsMargins(11, 6, 4, 6);
    layout->setSpacing(4);
    layout->addWidget(text_, 1);
    layout->addWidget(dismiss_, 0, Qt::AlignTop);
    connect(dismiss_, &QToolButton::clicked, this, &InlineMessage::clear);
    hide();
}

void InlineMessage::show(Kind kind, const QString& text) {
    kind_ = kind;
    text_->setText(text);
    setVisible(!text.isEmpty());
    update();
}

void InlineMessage::clear() {
    text_->clear();
    hide();
}

void InlineMessage::paintEvent(QPaintEvent*) {
    const Theme& theme = Theme::current();
    const QColor tone = kind_ == Kind::Error ? theme.danger : kind_ == Kind::Warning ? theme.warning : theme.accent;
    QColor wash = tone;
    wash.setAlphaF(0.12F);
    QPainter painter(this);
    painter.setRenderHint(QPainter::Antialiasing);
    painter.setPen(Qt::NoPen);
    painter.setBrush(wash);
    painter.drawRoundedRect(rect(), 4, 4);
    painter.setBrush(tone);
    painter.drawRoundedRect(QRect(0, 0, 3, height()), 1.5, 1.5);
}

MeasuredLabel::Measures& MeasuredLabel::measures() const {
    const std::tuple way{wordWrap(), margin(), indent(), int(textFormat()), int(textInteractionFlags())};
    if (measures_.text != text() || measures_.way != way) measures_ = {text(), way, {}, {}, {}};
    return measures_;
}

int MeasuredLabel::heightForWidth(int width) const {
    QHash<int, int>& heights = measures().heights;
    const auto known = heights.constFind(width);
    return known != heights.constEnd() ? *known : *heights.insert(width, QLabel::heightForWidth(width));
}

QSize MeasuredLabel::sizeHint() const {
    QSize& hint = measures().hint;
    if (!hint.isValid()) hint = QLabel::sizeHint();
    return hint;
}

QSize MeasuredLabel::minimumSizeHint() const {
    QSize& minimum = measures().minimum;
    if (!minimum.isValid()) minimum = QLabel::minimumSizeHint();
    return minimum;
}

bool MeasuredLabel::event(QEvent* event) {
    switch (event->type()) {
    case QEvent::FontChange:
    case QEvent::StyleChange:
    case QEvent::ContentsRectChange:
    case QEvent::Polish:
    case QEvent::ScreenChangeInternal:
        measures_ = {};
        break;
    default:
        break;
    }
    return QLabel::event(event);
}

MutedLabel::MutedLabel(const QString& text, QWidget* parent) : MeasuredLabel(text, parent) {
    setProperty("role", "muted");
    setTextFormat(Qt::PlainText); // text from a file may look like markup
}

QLabel* alignedLabel(const QString& text) {
    auto* label = new QLabel(text);
    label->setMinimumWidth(label->fontMetrics().horizontalAdvance(QStringLiteral("Link (modelled)")) + 2);
    return label;
}

void setUnit(QSpinBox* spin, const QString& unit) {
    if (unit.isEmpty()) return;
    const auto show = [spin, unit](int value) {
        const bool singular = value == 1 && unit.endsWith(QLatin1Char('s'));
        spin->setSuffix(QLatin1Char(' ') + (singular ? unit.chopped(1) : unit));
    };
    QObject::connect(spin, &QSpinBox::valueChanged, spin, show);
    show(spin->value());
}

namespace {

class WheelGuard final : public QObject {
public:
    using QObject::QObject;
    bool eventFilter(QObject* watched, QEvent* event) override {
        if (event->type() != QEvent::Wheel || static_cast<QWidget*>(watched)->hasFocus()) return false;
        event->ignore(); // the form then scrolls
        return true;
    }
};

} // namespace

void ignoreWheelUnlessFocused(QWidget* editor) {
    editor->setFocusPolicy(Qt::StrongFocus);
    editor->installEventFilter(new WheelGuard(editor));
}

} // namespace kvscope::ui
