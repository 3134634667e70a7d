// Small building blocks of the panels: a section that folds, a message in place, muted text.
#pragma once

#include <QFrame>
#include <QHash>
#include <QLabel>
#include <QToolButton>
#include <QWidget>

#include <tuple>

class QSpinBox;
class QVBoxLayout;

namespace kvscope::ui {

/// A heading with a body that folds away.
class Section final : public QWidget {
    Q_OBJECT
public:
    explicit Section(const QString& title, bool expanded = true, QWidget* parent = nullptr);
    QVBoxLayout* body() const { return body_; }
    bool isExpanded() const { return header_->isChecked(); }
    void setExpanded(bool expanded) { header_->setChecked(expanded); }

signals:
    void toggled(bool expanded);

protected:
    void paintEvent(QPaintEvent* event) override;

private:
    QToolButton* header_;
    QWidget* content_;
    QVBoxLayout* body_;
};

/// An error, warning or note where it happened; hidden while it has no text.
class InlineMessage final : public QFrame {
    Q_OBJECT
public:
    enum class Kind { Note, Warning, Error };
    explicit InlineMessage(QWidget* parent = nullptr, bool dismissable = true);
    void show(Kind kind, const QString& text);
    void clear();
    QString text() const { return text_->text(); }

protected:
    void paintEvent(QPaintEvent* event) override;

private:
    Kind kind_ = Kind::Note;
    QLabel* text_;
    QToolButton* dismiss_;
};

/// A label that measures its text once: a panel of many is laid out anew whenever one of them changes, and QLabel would
/// set the text of all of them again each time.
class MeasuredLabel : public QLabel {
    Q_OBJECT
public:
    using QLabel::QLabel;
    int heightForWidth(int width) const override;
    QSize sizeHint() const override;
    QSize minimumSizeHint() const override;

protected:
    bool event(QEvent* event) override;

private:
    struct Measures {
        QString text; // of which these are, set in this way
        std::tuple<bool, int, int, int, int> way;
        QHash<int, int> heights;
        QSize hint, minimum; // invalid: not measured
    };
    Measures& measures() const;
    mutable Measures measures_;
};

/// Secondary text in the theme's muted colour; plain text, unless its owner sets another format.
class MutedLabel final : public MeasuredLabel {
    Q_OBJECT
public:
    explicit MutedLabel(const QString& text = {}, QWidget* parent = nullptr);
};

/// Title bar of a dock: its title, what its content puts beside it, and a quiet way to hide it.
class DockTitle final : public QWidget {
    Q_OBJECT
public:
    explicit DockTitle(const QString& title, QWidget* beside = nullptr, QWidget* parent = nullptr);

signals:
    void closeRequested();
};

/// The label of a form's row, as wide as in every other form, so that editors line up between sections.
QLabel* alignedLabel(const QString& text);

/// The unit behind the number: "1 block", "2 blocks". `unit` is the plural.
void setUnit(QSpinBox* spin, const QString& unit);

/// Spin boxes and combo boxes in a scrolled form must not change when the wheel only passes over them.
void ignoreWheelUnlessFocused(QWidget* editor);

} // namespace kvscope::ui
