// The line of small text below a plot. In a low view it is cut to a few lines, because its rest would take the plot's
// height; its tooltip then has all of it.
#pragma once

#include <QLabel>

namespace kvscope::ui {

class NoteLabel final : public QLabel {
    Q_OBJECT
public:
    explicit NoteLabel(QWidget* parent = nullptr);
    /// Cuts the note to so many lines in a view of `owner` that is low, and shows all of it in a higher one. To be
    /// called when the owner has got another size. What counts is the part of the owner that is in sight: a view in a
    /// scroll area is as high as its content.
    void fit(const QWidget& owner, int lines);
    /// Whether some of the text is not shown.
    bool isCut() const;
    int heightForWidth(int width) const override;
    QSize sizeHint() const override;
    QSize minimumSizeHint() const override;

protected:
    bool event(QEvent* event) override;
    void paintEvent(QPaintEvent* event) override;

private:
    int heightOf(int lines) const; // pixels

    int mostLines_ = 0; // 0: all
};

} // namespace kvscope::ui
