// Makes an SVG picture that every XML reader accepts, whatever texts are in it: names and notes come from files.
#pragma once

#include <QBuffer>
#include <QSize>
#include <QString>
#include <QSvgGenerator>

namespace kvscope::ui {

class SvgFile {
public:
    /// `title` and `description` are plain text and are escaped here.
    SvgFile(QSize size, int dotsPerInch, QString title, QString description);
    /// The device to paint on. The painter must end before document() is called.
    QSvgGenerator& device() { return generator_; }
    /// The content of the file. Characters that XML cannot represent are left out, and controls of writing direction
    /// are shown (withoutDirections).
    QByteArray document() const;

private:
    QBuffer buffer_;
    QSvgGenerator generator_;
    QString title_, description_;
};

} // namespace kvscope::ui
