#include "ui/frame/svg_file.h"

#include "ui/frame/as_written.h"

#include <utility>

namespace kvscope::ui {
namespace {

/// Whether XML 1.0 cannot represent the character, not even escaped.
bool isForbidden(QChar c) {
    return (c < QLatin1Char(' ') && c != QLatin1Char('\n') && c != QLatin1Char('\t') && c != QLatin1Char('\r')) ||
           c == QChar(0xfffe) || c == QChar(0xffff);
}

QString element(const char* name, const QString& text) {
    return text.isEmpty() ? QString() : QStringLiteral("<%1>%2</%1>\n").arg(QLatin1String(name), text.toHtmlEscaped());
}

} // namespace

SvgFile::SvgFile(QSize size, int dotsPerInch, QString title, QString description)
    : title_(std::move(title)), description_(std::move(description)) {
    buffer_.open(QIODevice::WriteOnly);
    generator_.setOutputDevice(&buffer_);
    generator_.setSize(size);
    generator_.setViewBox(QRect(QPoint(0, 0), size));
    generator_.setResolution(dotsPerInch);
    generator_.setTitle(QString()); // empty, because Qt would not escape title and description
    generator_.setDescription(QString());
}

QByteArray SvgFile::document() const {
    QString text = QString::fromUtf8(buffer_.data());
    text.removeIf(isForbidden);
    const qsizetype opening = text.indexOf(QLatin1Char('>'), text.indexOf(QLatin1String("<svg"))) + 1;
    text.insert(opening, QLatin1Char('\n') + element("title", title_).removeIf(isForbidden) +
                             element("desc", description_).removeIf(isForbidden));
    return withoutDirections(std::move(text)).toUtf8(); // there are none but in texts of files
}

} // namespace kvscope::ui
