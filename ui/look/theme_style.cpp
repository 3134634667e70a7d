#include "ui/look/theme_style.h"

#include "ui/look/theme.h"

namespace kvscope::ui {

namespace {

QColor mix(const QColor& a, const QColor& b, double share) {
    return QColor::fromRgbF(float(a.redF() + (b.redF() - a.redF()) * share),
                            float(a.greenF() + (b.greenF() - a.greenF()) * share),
                            float(a.blueF() + (b.blueF() - a.blueF()) * share));
}

/// White or near-black, whichever is easier to read on `fill`.
QColor onColour(const QColor& fill) {
    return 0.299 * fill.redF() + 0.587 * fill.greenF() + 0.114 * fill.blueF() > 0.55 ? QColor(0x0b0d10)
                                                                                     : QColor(Qt::white);
}

} // namespace

QPalette paletteOf(const Theme& t) {
    QPalette p;
    p.setColor(QPalette::Window, t.window);
    p.setColor(QPalette::WindowText, t.text);
    p.setColor(QPalette::Base, t.base);
    p.setColor(QPalette::AlternateBase, mix(t.base, t.window, 0.6));
    p.setColor(QPalette::Text, t.text);
    p.setColor(QPalette::Button, t.raised);
    p.setColor(QPalette::ButtonText, t.text);
    p.setColor(QPalette::BrightText, t.danger);
    p.setColor(QPalette::ToolTipBase, t.raised);
    p.setColor(QPalette::ToolTipText, t.text);
    p.setColor(QPalette::PlaceholderText, t.mutedText);
    p.setColor(QPalette::Highlight, t.accent);
    p.setColor(QPalette::HighlightedText, onColour(t.accent));
    p.setColor(QPalette::Link, t.accent);
    p.setColor(QPalette::LinkVisited, t.accent);
    p.setColor(QPalette::Light, mix(t.raised, Qt::white, 0.15));
    p.setColor(QPalette::Midlight, mix(t.raised, t.border, 0.3));
    p.setColor(QPalette::Mid, t.border);
    p.setColor(QPalette::Dark, mix(t.border, Qt::black, 0.25));
    p.setColor(QPalette::Shadow, mix(t.border, Qt::black, 0.6));
    const QColor disabled = mix(t.text, t.window, 0.55);
    for (const auto role : {QPalette::WindowText, QPalette::Text, QPalette::ButtonText})
        p.setColor(QPalette::Disabled, role, disabled);
    p.setColor(QPalette::Disabled, QPalette::Highlight, mix(t.border, t.window, 0.3));
    p.setColor(QPalette::Disabled, QPalette::HighlightedText, disabled);
    return p;
}

QString styleSheetOf(const Theme& t) {
    // The style sheet names only those widgets that Fusion does not draw in the palette's colours.
    QString sheet = QStringLiteral(R"(
QToolTip { background: @raised; color: @text; border: 1px solid @border; padding: 6px; }
QDialogButtonBox { dialogbuttonbox-buttons-have-icons: 0; }
QMainWindow::separator { background: @border; width: 1px; height: 1px; }
QMainWindow::separator:hover { background: @accent; }
QDockWidget { color: @muted; font-weight: 600; }
QDockWidget::title { background: @window; padding: 7px 10px 6px 10px; border-bottom: 1px solid @border; }
QTabWidget::pane { border: 0; border-top: 1px solid @border; }
QTabBar { qproperty-drawBase: 0; outline: 0; }
QTabBar::scroller { width: 0px; }
QTabBar::tab { background: @window; color: @muted; padding: 8px 14px 6px 14px; border: 0;
               border-bottom: 2px solid transparent; }
QTabBar::tab:hover { color: @text; background: @hover; }
QTabBar::tab:selected { color: @text; border-bottom: 2px solid @accent; }
QTabBar::tab:focus { color: @accent; }
QTabBar[inFront="false"]::tab:selected { color: @muted; border-bottom: 2px solid @border; }
QPushButton, QToolButton[framed="true"] { background: @raised; color: @text; border: 1px solid @border;
               border-radius: 4px; padding: 5px 12px; min-height: 16px; }
QPushButton:hover { background: @hover; }
QPushButton:pressed { background: @pressed; }
QPushButton:focus { border-color: @accent; }
QPushButton:default, QPushButton[primary="true"] { background: @accent; color: @onAccent; border-color: @accent; }
QPushButton:default:hover, QPushButton[primary="true"]:hover { background: @accentHover; }
QPushButton:disabled { color: @disabled; background: @window; border-color: @border; }
QToolButton { border: 1px solid transparent; border-radius: 4px; padding: 4px 8px; color: @text; }
QToolButton:hover { background: @hover; }
QToolButton:pressed, QToolButton:checked { background: @pressed; }
QToolButton:disabled { color: @disabled; }
QToolButton:focus { border-color: @accent; }
QLineEdit, QPlainTextEdit, QTextEdit { background: @base; color: @text; border: 1px solid @border; border-radius: 4px;
               padding: 3px 6px; selection-background-color: @accent; selection-color: @onAccent; }
QLineEdit:focus, QPlainTextEdit:focus, QTextEdit:focus { border-color: @accent; }
QLineEdit[role="active"], QComboBox[role="active"] { border: 1px solid @accent; background: @raised; }
QLineEdit[role="danger"] { border: 1px solid @danger; }
QLineEdit:disabled, QPlainTextEdit:disabled { color: @disabled; background: @window; }
QAbstractSpinBox QLineEdit, QComboBox QLineEdit { border: 0; padding: 0; background: transparent; }
QCheckBox::indicator:unchecked:enabled { width: 13px; height: 13px; border: 1px solid @muted; border-radius: 3px;
               background: @base; }
QAbstractItemView { background: @base; border: 1px solid @border; selection-background-color: @accent;
               selection-color: @onAccent; outline: 0; }
QAbstractItemView { background: @base; alternate-background-color: @alternate; border: 1px solid @border;
               gridline-color: @grid; }
QHeaderView { background: @window; border: 0; }
QHeaderView::section { background: @window; color: @muted; border: 0; border-bottom: 1px solid @border;
               padding: 5px 3px; font-weight: 600; }
QTableCornerButton::section { background: @window; border: 0; }
QProgressBar { background: @grid; border: 0; border-radius: 3px; text-align: center; color: @text; min-height: 6px; }
QProgressBar::chunk { background: @accent; border-radius: 3px; }
QStatusBar { background: @window; color: @muted; border-top: 1px solid @border; }
QStatusBar::item { border: 0; }
QMenuBar { background: @window; color: @text; }
QMenuBar::item { padding: 5px 9px; background: transparent; border-radius: 4px; }
QMenuBar::item:selected { background: @hover; }
QMenu { background: @raised; border: 1px solid @border; padding: 4px; }
QMenu::item { padding: 5px 26px 5px 22px; border-radius: 3px; }
QMenu::item:selected { background: @accent; color: @onAccent; }
QMenu::item:disabled { color: @disabled; }
QMenu::separator { height: 1px; background: @border; margin: 4px 6px; }
QScrollBar:vertical { background: transparent; width: 11px; margin: 0; }
QScrollBar:horizontal { background: transparent; height: 11px; margin: 0; }
QScrollBar::handle { background: @handle; border-radius: 4px; margin: 2px; }
QScrollBar::handle:vertical { min-height: 28px; }
QScrollBar::handle:horizontal { min-width: 28px; }
QScrollBar::handle:hover { background: @muted; }
QScrollBar::add-line, QScrollBar::sub-line { width: 0; height: 0; }
QScrollBar::add-page, QScrollBar::sub-page { background: transparent; }
QGroupBox { border: 0; margin-top: 20px; font-weight: 600; }
QGroupBox::title { subcontrol-origin: margin; left: 0; color: @muted; }
QSplitter::handle { background: @border; }
QLabel[role="muted"] { color: @muted; }
QLabel[role="danger"], QToolButton[role="danger"] { color: @danger; }
QLabel[role="title"] { font-weight: 600; }
)");
    const std::pair<const char*, QColor> names[] = {
        // A longer name stands before a shorter one, because "@accent" is also the beginning of "@accentHover".
        {"@accentHover", mix(t.accent, t.text, 0.15)},
        {"@alternate", mix(t.base, t.window, 0.6)},
        {"@disabled", mix(t.text, t.window, 0.55)},
        {"@onAccent", onColour(t.accent)},
        {"@pressed", mix(t.raised, t.text, 0.16)},
        {"@window", t.window},
        {"@raised", t.raised},
        {"@border", t.border},
        {"@accent", t.accent},
        {"@danger", t.danger},
        {"@handle", mix(t.border, t.mutedText, 0.35)},
        {"@muted", t.mutedText},
        {"@hover", mix(t.raised, t.text, 0.08)},
        {"@base", t.base},
        {"@text", t.text},
        {"@grid", t.plotGrid},
    };
    for (const auto& [name, colour] : names) sheet.replace(QLatin1String(name), colour.name());
    return sheet;
}

} // namespace kvscope::ui
