// A view's answer in a sentence above its plot: large letters over small ones, on the screen and at the top of a
// picture.
#pragma once

#include <QColor>
#include <QFont>
#include <QRect>
#include <QString>
#include <QWidget>

class QLabel;
class QPainter;

namespace kvscope::ui {

class NoteLabel;

/// The program's font in bold letters, `size` times as large.
QFont headlineFont(double size = 1.5);

/// Paragraphs below each other at the top of a picture, each as wide as the area and as high as it needs.
class Paragraphs {
public:
    /// painter: null: the paragraphs are measured and not drawn. Its font is as before when this object is gone.
    Paragraphs(QPainter* painter, QRect area);
    ~Paragraphs();
    Paragraphs(const Paragraphs&) = delete;
    Paragraphs& operator=(const Paragraphs&) = delete;

    /// Without a text, nothing is added. The second one is in the painter's font.
    void add(const QString& text, const QFont& font, const QColor& colour);
    void add(const QString& text, const QColor& colour) { add(text, font_, colour); }
    void addSpace(int height) { bottom_ += height; }

    int bottom() const { return bottom_; } // where the next paragraph begins
    /// What they take of the area, with a distance to what comes below.
    int height() const { return bottom_ - area_.top() + 4; }

private:
    QPainter* painter_;
    const QRect area_;
    const QFont font_;
    int bottom_ = 0;
};

/// The two texts above a plot. Both are plain and can be selected.
class Headline final : public QWidget {
    Q_OBJECT
public:
    explicit Headline(QWidget* parent);
    void setText(const QString& sentence, const QString& detail);
    void applyFont(); // after the program's font has changed
    /// Cuts the detail to two lines where the view is low; its tooltip then has all of it.
    void fit(const QWidget& view);
    /// The same at the top of a picture.
    void addTo(Paragraphs& paragraphs) const;

private:
    QLabel* sentence_;
    NoteLabel* detail_;
};

} // namespace kvscope::ui
