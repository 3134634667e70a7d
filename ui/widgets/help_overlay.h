// Keyboard shortcuts, definitions and the licence, laid over the window; never modal.
#pragma once

#include "ui/frame/shortcuts.h"

#include <QPointer>
#include <QWidget>

#include <functional>
#include <vector>

class QButtonGroup;
class QTextBrowser;

namespace kvscope::ui {

class HelpOverlay final : public QWidget {
    Q_OBJECT
public:
    enum class Page { Shortcuts, Definitions, About };
    using Shortcuts = std::function<std::vector<ShortcutText>()>;
    /// Covers `parent`, follows its size and lists what `shortcuts` returns when it is opened. Hidden at first.
    HelpOverlay(QWidget* parent, Shortcuts shortcuts);
    /// `definition` scrolls to that entry.
    void open(Page page, const QString& definition = {});
    void leave(); // the focus goes back to where it was
    bool isOpen(Page page) const;
    QString text() const; // what is shown, as plain text

protected:
    bool eventFilter(QObject* watched, QEvent* event) override;
    bool focusNextPrevChild(bool next) override;
    void keyPressEvent(QKeyEvent* event) override;
    void mousePressEvent(QMouseEvent* event) override;
    void paintEvent(QPaintEvent* event) override;
    void resizeEvent(QResizeEvent* event) override;

private:
    Shortcuts shortcuts_;
    QString html(Page page) const;
    QString shortcutsHtml() const;
    QRect cardRect() const;

    QWidget* card_;
    QTextBrowser* browser_;
    QButtonGroup* pages_;
    QPointer<QWidget> before_; // had the focus
};

} // namespace kvscope::ui
