// Small widgets of which the panels are made: a section that folds, a message in place, muted text, and others.
#pragma once

#include <QFrame>
#include <QHash>
#include <QLabel>
#include <QToolButton>
#include <QWidget>

#include <tuple>

class QScrollArea;
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

/// A label that measures its text only once. A panel with many labels is laid out anew whenever one of them changes,
/// and QLabel would then measure the texts of all of them again.
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
        QString text; // the text that was measured, with the settings in `way`
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

/// The title bar of a dock: its title, the widget `beside` that the content of the dock provides, and a plain button to
/// hide the dock.
class DockTitle final : public QWidget {
    Q_OBJECT
public:
    explicit DockTitle(const QString& title, QWidget* beside = nullptr, QWidget* parent = nullptr);

signals:
    void closeRequested();
};

/// A scroll area for a view or another page that may be larger than its place, so that the window can be made small and
/// scrolls instead.
QScrollArea* makePageScroll();

/// A label for a row of a form. It has the same width in all forms, so that the editors of all sections are aligned.
QLabel* alignedLabel(const QString& text);

/// Shows the unit behind the number of a spin box: "1 block", "2 blocks". `unit` is the plural.
void setUnit(QSpinBox* spin, const QString& unit);

/// Lets an editor ignore the mouse wheel unless it has the focus. Otherwise scrolling a form would change the values
/// over which the pointer passes.
void ignoreWheelUnlessFocused(QWidget* editor);

} // namespace kvscope::ui
