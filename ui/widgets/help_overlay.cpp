#include "ui/widgets/help_overlay.h"

#include "ui/frame/definitions.h"
#include "ui/look/icons.h"
#include "ui/look/theme.h"

#include <QButtonGroup>
#include <QCoreApplication>
#include <QHBoxLayout>
#include <QKeyEvent>
#include <QPainter>
#include <QTextBrowser>
#include <QToolButton>
#include <QVBoxLayout>

#include <algorithm>

namespace kvscope::ui {

namespace {
constexpr int kColumnWidth = 320; // pixels, of a column of shortcuts
constexpr QSize kCard(1240, 920); // pixels; smaller where the window has less room

struct Library {
    const char *name, *licence, *use;
};

/// What the programs are linked with: the first table of docs/third-party.md, which says more of each.
constexpr Library kLibraries[] = {
    {"Qt 6 (base, SVG)", "LGPL-3.0-only or GPL-2.0-or-later", QT_TR_NOOP("the desktop")},
    {"QCustomPlot", "GPL-3.0-or-later", QT_TR_NOOP("plots")},
    {"SQLite", "public domain", QT_TR_NOOP("traces")},
    {"Highway", "Apache-2.0 or BSD-3-Clause", QT_TR_NOOP("the CPU's vector loops")},
    {"{fmt}", "MIT", QT_TR_NOOP("text")},
    {"PCRE2", "BSD-3-Clause", QT_TR_NOOP("tokenizers")},
    {"utf8proc", "MIT, Unicode data files and software licence", QT_TR_NOOP("Unicode normalisation")},
    {"zlib", "Zlib", QT_TR_NOOP("compressed imports")},
    {"CLI11", "BSD-3-Clause", QT_TR_NOOP("command lines; headers, compiled in")},
    {"nlohmann/json", "MIT", QT_TR_NOOP("JSON; headers, compiled in")},
    {"Asio", "BSL-1.0", QT_TR_NOOP("the HTTP server; headers, compiled in")},
    {"CUDA runtime (static)", "NVIDIA CUDA toolkit end user licence, redistributable part",
     QT_TR_NOOP("the GPU backend, where it is built in")},
};

} // namespace

HelpOverlay::HelpOverlay(QWidget* parent, Shortcuts shortcuts)
    : QWidget(parent), shortcuts_(std::move(shortcuts)), card_(new QWidget(this)), browser_(new QTextBrowser),
      pages_(new QButtonGroup(this)) {
    setObjectName(QStringLiteral("helpOverlay"));
    setFocusPolicy(Qt::StrongFocus);
    hide();
    parent->installEventFilter(this);
    auto* bar = new QHBoxLayout;
    const char* titles[] = {QT_TR_NOOP("Keyboard shortcuts"), QT_TR_NOOP("Definitions"), QT_TR_NOOP("About KVScope")};
    for (int page = 0; page < 3; ++page) {
        auto* button = new QToolButton;
        button->setText(tr(titles[page]));
        button->setCheckable(true);
        button->setAutoRaise(true);
        button->setFocusPolicy(Qt::StrongFocus);
        pages_->addButton(button, page);
        bar->addWidget(button);
    }
    bar->addStretch();
    auto* close = new QToolButton;
    close->setText(QStringLiteral("×"));
    close->setAutoRaise(true);
    close->setToolTip(tr("Close (Esc)"));
    close->setFocusPolicy(Qt::StrongFocus);
    close->setAccessibleName(tr("Close"));
    bar->addWidget(close);
    connect(close, &QToolButton::clicked, this, &HelpOverlay::leave);
    connect(pages_, &QButtonGroup::idClicked, this, [this](int page) { open(Page(page)); });
    browser_->setFrameShape(QFrame::NoFrame);
    browser_->setOpenExternalLinks(true);
    browser_->setObjectName(QStringLiteral("helpText"));
    browser_->setAccessibleName(tr("Help"));
    auto* layout = new QVBoxLayout(card_);
    layout->setContentsMargins(14, 10, 10, 12);
    layout->addLayout(bar);
    layout->addWidget(browser_, 1);
}

void HelpOverlay::open(Page page, const QString& definition) {
    pages_->button(int(page))->setChecked(true);
    const Theme& theme = Theme::current();
    browser_->setStyleSheet(QStringLiteral("QTextBrowser { border: none; background: %1; }").arg(theme.raised.name()));
    setGeometry(parentWidget()->rect());
    browser_->setHtml(html(page));
    if (!isVisible()) before_ = window()->focusWidget();
    show();
    raise();
    browser_->setFocus();
    if (!definition.isEmpty()) browser_->scrollToAnchor(definition);
}

void HelpOverlay::leave() {
    hide();
    if (before_) before_->setFocus(Qt::OtherFocusReason); // the widget that had the keyboard gets it back
}

bool HelpOverlay::isOpen(Page page) const { return isVisible() && pages_->checkedId() == int(page); }

/// Tab moves the focus only among the widgets of the card, because the user cannot see what lies behind it.
bool HelpOverlay::focusNextPrevChild(bool next) {
    QList<QWidget*> stops{browser_};
    for (QWidget* button : card_->findChildren<QToolButton*>(Qt::FindDirectChildrenOnly)) stops << button;
    const qsizetype at = stops.indexOf(window()->focusWidget()), count = stops.size();
    stops[(at + (next ? 1 : count - 1)) % count]->setFocus(next ? Qt::TabFocusReason : Qt::BacktabFocusReason);
    return true;
}

QString HelpOverlay::text() const { return browser_->toPlainText(); }

/// The groups of shortcuts in one, two or three columns of about the same length, so that as many as possible are seen
/// without scrolling.
QString HelpOverlay::shortcutsHtml() const {
    const std::vector<ShortcutText> shortcuts = shortcuts_();
    const QString muted = Theme::current().mutedText.name();
    const int columns = cardRect().width() >= 3 * kColumnWidth ? 3 : cardRect().width() >= 2 * kColumnWidth ? 2 : 1;
    QStringList texts;
    for (int i = 0; i < columns; ++i) texts << QString();
    std::size_t end = 0;
    for (std::size_t first = 0; first < shortcuts.size(); first = end) {
        while (end < shortcuts.size() && shortcuts[end].group == shortcuts[first].group) ++end;
        // The middle of the group decides about its column.
        const auto column = qsizetype((first + end) / 2 * std::size_t(columns) / shortcuts.size());
        QString& text = texts[std::min(column, qsizetype(columns - 1))];
        text += QStringLiteral("<tr><td colspan=\"2\"><p style=\"margin-top:12px; color:%1\"><b>%2</b></p></td></tr>")
                    .arg(muted, shortcuts[first].group.toHtmlEscaped());
        for (std::size_t row = first; row < end; ++row)
            text += QStringLiteral("<tr><td width=\"150\"><b>%1</b></td><td>%2</td></tr>")
                        .arg(shortcuts[row].keys.toHtmlEscaped(), shortcuts[row].action.toHtmlEscaped());
    }
    QString html = QStringLiteral("<table width=\"100%\" cellpadding=\"0\"><tr>");
    for (const QString& text : texts)
        html += QStringLiteral("<td width=\"%1%\"><table cellspacing=\"0\" cellpadding=\"3\">%2</table></td>")
                    .arg(100 / columns)
                    .arg(text);
    return html + QStringLiteral("</tr></table>");
}

QString HelpOverlay::html(Page page) const {
    const Theme& theme = Theme::current();
    const QString muted = theme.mutedText.name();
    QString body;
    if (page == Page::Shortcuts) {
        body = shortcutsHtml();
    } else if (page == Page::Definitions) {
        for (const Definition& definition : definitions())
            body += QStringLiteral("<p style=\"margin-top:12px; margin-bottom:2px\"><a name=\"%1\"></a><b>%2</b></p><p "
                                   "style=\"margin-top:0px\">%3</p>")
                        .arg(QLatin1String(definition.id), QString::fromUtf8(definition.title).toHtmlEscaped(),
                             QString::fromUtf8(definition.text).toHtmlEscaped());
    } else {
        body = tr("<p><b>KVScope %1</b></p><p>A profiler for sparse-attention decoding with KV-cache offloading.</p>"
                  "<p>Free software under the GNU General Public License, version 3 or any later version "
                  "(GPL-3.0-or-later), without any warranty. The licence text is in the file LICENSE of the sources "
                  "and at "
                  "<a href=\"https://www.gnu.org/licenses/gpl-3.0.html\">gnu.org/licenses</a>.</p>"
                  "<p style=\"margin-top:12px\"><b>Libraries of others</b></p>")
                   .arg(QCoreApplication::applicationVersion().toHtmlEscaped());
        body += QStringLiteral("<table cellspacing=\"0\" cellpadding=\"3\">");
        for (const Library& library : kLibraries)
            body +=
                QStringLiteral("<tr><td>%1</td><td style=\"padding-left:18px\">%2</td><td "
                               "style=\"padding-left:18px; color:%3\">%4</td></tr>")
                    .arg(QString::fromUtf8(library.name).toHtmlEscaped(),
                         QString::fromUtf8(library.licence).toHtmlEscaped(), muted, tr(library.use).toHtmlEscaped());
        body += QStringLiteral("</table>") +
                tr("<p style=\"color:%1\">This window runs with Qt %2. Loaded where a system has them, and part of no "
                   "package: the NVIDIA driver (libcuda, NVML), cuBLASLt, CUPTI, NVTX.</p>")
                    .arg(muted, QString::fromLatin1(qVersion()));
    }
    return QStringLiteral("<body style=\"color:%1\">%2</body>").arg(theme.text.name(), body);
}

QRect HelpOverlay::cardRect() const {
    const QSize size = kCard.boundedTo(QSize(width(), height()) - QSize(40, 40));
    return {QPoint((width() - size.width()) / 2, (height() - size.height()) / 2), size};
}

void HelpOverlay::resizeEvent(QResizeEvent*) { card_->setGeometry(cardRect()); }

bool HelpOverlay::eventFilter(QObject* watched, QEvent* event) {
    if (watched == parentWidget() && event->type() == QEvent::Resize) setGeometry(parentWidget()->rect());
    return QWidget::eventFilter(watched, event);
}

void HelpOverlay::keyPressEvent(QKeyEvent* event) {
    if (event->key() == Qt::Key_Escape)
        leave();
    else
        QWidget::keyPressEvent(event);
}

void HelpOverlay::mousePressEvent(QMouseEvent* event) {
    if (!cardRect().contains(event->pos())) leave();
}

void HelpOverlay::paintEvent(QPaintEvent*) {
    const Theme& theme = Theme::current();
    QPainter painter(this);
    painter.fillRect(rect(), QColor(0, 0, 0, 110));
    painter.setRenderHint(QPainter::Antialiasing);
    painter.setPen(theme.border);
    painter.setBrush(theme.raised);
    painter.drawRoundedRect(QRectF(cardRect()).adjusted(-0.5, -0.5, 0.5, 0.5), 8, 8);
}

} // namespace kvscope::ui
