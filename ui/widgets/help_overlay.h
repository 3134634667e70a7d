// Shows keyboard shortcuts, definitions and the licence on a card over the window. The overlay is not modal.
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
    /// Covers `parent` and follows its size. When it is opened, it lists what `shortcuts` returns. Hidden at first.
    HelpOverlay(QWidget* parent, Shortcuts shortcuts);
    /// Shows a page. `definition`: the id of the definition to scroll to; empty: the top of the page.
    void open(Page page, const QString& definition = {});
    void leave(); // hides the overlay and gives the focus back
    bool isOpen(Page page) const;
    QString text() const; // the text of the page

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
    QPointer<QWidget> before_; // had the focus before the overlay was opened
};

} // namespace kvscope::ui
