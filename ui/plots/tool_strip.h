// The pickers above a plot, in a FlowLayout. In a small view they fold to one row, because the rest would take the
// plot's height; a button shows all of them.
#pragma once

#include <QWidget>

class QToolButton;

namespace kvscope::ui {

class FlowLayout;

class ToolStrip : public QWidget {
public:
    explicit ToolStrip(QWidget* view);
    /// To be called when the view above whose plot the strip stands has got another size.
    void fit();
    bool isFolded() const { return folded_; }

protected:
    bool event(QEvent* event) override;

private:
    void unfold(bool wanted);

    FlowLayout* flow_;
    QToolButton* more_;
    bool folds_ = false, folded_ = false; // folds: there are more rows than the view has room for
    bool unfolded_ = false;               // by the user
};

} // namespace kvscope::ui
