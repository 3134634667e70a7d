#include "ui/frame/as_written.h"

#include <QTextDocument>

namespace kvscope::ui {

QString asWritten(const QString& text) {
    return Qt::mightBeRichText(text) ? Qt::convertFromPlainText(text, Qt::WhiteSpaceNormal) : text;
}

QString buttonText(QString text) { return text.replace(QLatin1Char('&'), QLatin1String("&&")); }

} // namespace kvscope::ui
