#include "ui/frame/as_written.h"

#include <QTextDocument>

namespace kvscope::ui {
namespace {

bool turnsText(QChar c) {
    const ushort code = c.unicode();
    return code == 0x061c || code == 0x200e || code == 0x200f || (code >= 0x202a && code <= 0x202e) ||
           (code >= 0x2066 && code <= 0x2069);
}

} // namespace

QString withoutDirections(QString text) {
    for (qsizetype at = 0; at < text.size(); ++at)
        if (turnsText(text[at])) {
            const QString shown = QStringLiteral("\\u%1").arg(text[at].unicode(), 4, 16, QLatin1Char('0'));
            text.replace(at, 1, shown);
            at += shown.size() - 1;
        }
    return text;
}

QString asWritten(const QString& text) {
    const QString shown = withoutDirections(text);
    return Qt::mightBeRichText(shown) ? Qt::convertFromPlainText(shown, Qt::WhiteSpaceNormal) : shown;
}

QString buttonText(QString text) { return text.replace(QLatin1Char('&'), QLatin1String("&&")); }

} // namespace kvscope::ui
