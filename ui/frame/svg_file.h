// A picture as SVG that every reader of XML takes, whatever the texts in it are: names and notes come from files.
#pragma once

#include <QBuffer>
#include <QSize>
#include <QString>
#include <QSvgGenerator>

namespace kvscope::ui {

class SvgFile {
public:
    /// title, description: plain text, escaped here
    SvgFile(QSize size, int dotsPerInch, QString title, QString description);
    /// To paint on; the painter ends before document() is asked for.
    QSvgGenerator& device() { return generator_; }
    /// The whole file. Characters that XML has no form for are left out.
    QByteArray document() const;

private:
    QBuffer buffer_;
    QSvgGenerator generator_;
    QString title_, description_;
};

} // namespace kvscope::ui
