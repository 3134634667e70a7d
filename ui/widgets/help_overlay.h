// Keyboard shortcuts, definitions and the licence, laid over the window; never modal.
#pragma once

#include <QWidget>

#include <vector>

class QButtonGroup;
class QTextBrowser;

namespace kvscope::ui {

struct ShortcutText {
    QString group, action, keys;
};

class HelpOverlay final : public QWidget {
    Q_OBJECT
public:
    enum class Page { Shortcuts, Definitions, About };
    /// Covers `parent` and follows its size. Hidden at first.
    explicit HelpOverlay(QWidget* parent);
    void setShortcuts(std::vector<ShortcutText> shortcuts);
    /// `definition` scrolls to that entry.
    void open(Page page, const QString& definition = {});
    QString text() const; // what is shown, as plain text

protected:
    bool eventFilter(QObject* watched, QEvent* event) override;
    void keyPressEvent(QKeyEvent* event) override;
    void mousePressEvent(QMouseEvent* event) override;
    void paintEvent(QPaintEvent* event) override;
    void resizeEvent(QResizeEvent* event) override;

private:
    QString html(Page page) const;
    QRect cardRect() const;

    std::vector<ShortcutText> shortcuts_;
    QWidget* card_;
    QTextBrowser* browser_;
    QButtonGroup* pages_;
};

} // namespace kvscope::ui
