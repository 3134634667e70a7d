// Draws text, rules and pictures as vectors on the A4 pages of a PDF, from the top of each page to its foot. Lengths
// are points (1/72 inch).
#pragma once

#include <QColor>
#include <QFont>
#include <QFontMetricsF>
#include <QPainter>
#include <QPdfWriter>
#include <QString>

#include <algorithm>

namespace kvscope::ui {

inline constexpr double kPageWidth = 595, kPageHeight = 842, kMargin = 46, kBottom = kPageHeight - 52;
inline constexpr double kWidth = kPageWidth - 2 * kMargin;

inline const QColor kInk(0x1b, 0x22, 0x30), kMuted(0x5c, 0x66, 0x75), kLine(0xdd, 0xe2, 0xea),
    kHeader(0x13, 0x1a, 0x26);

/// Keeps the place on the page at which the next text, table or picture is drawn, and begins new pages.
class Pages {
public:
    explicit Pages(QPdfWriter& writer, QString footer)
        : writer_(writer), painter_(&writer), footer_(std::move(footer)) {
        painter_.scale(writer.resolution() / 72.0, writer.resolution() / 72.0);
        painter_.setRenderHints(QPainter::Antialiasing | QPainter::SmoothPixmapTransform | QPainter::TextAntialiasing);
        endPage();
    }
    QPainter& painter() { return painter_; }
    double y() const { return y_; }
    void skip(double height) { y_ += height; }
    /// Begins a new page unless `height` more points fit on this page. @return true if it began one
    bool need(double height) {
        if (y_ + height <= kBottom) return false;
        writer_.newPage();
        ++page_;
        endPage();
        y_ = kMargin;
        return true;
    }
    static QFont font(double size, bool bold = false) {
        QFont result;
        // Pixel sizes are whole numbers. The text is set eight times as large and painted at an eighth of its size.
        result.setPixelSize(std::max(1, int(size * 8)));
        result.setWeight(bold ? QFont::DemiBold : QFont::Normal);
        return result;
    }
    /// The width of the text in points if no line is wrapped: the width of the longest line.
    static double textWidth(const QString& text, double size, bool bold = false) {
        return QFontMetricsF(font(size, bold)).horizontalAdvance(text) / 8;
    }
    /// The height in points of the text wrapped to this width.
    double textHeight(const QString& text, double width, double size, bool bold = false) const {
        return QFontMetricsF(font(size, bold))
                   .boundingRect(QRectF(0, 0, width * 8, 1e6), Qt::TextWordWrap, text)
                   .height() /
               8;
    }
    void textAt(double x, double top, double width, const QString& text, double size, const QColor& colour,
                bool bold = false, bool italic = false, Qt::Alignment align = Qt::AlignLeft) {
        painter_.save();
        painter_.translate(x, top);
        painter_.scale(1.0 / 8, 1.0 / 8);
        QFont face = font(size, bold);
        face.setItalic(italic);
        painter_.setFont(face);
        painter_.setPen(colour);
        painter_.drawText(QRectF(0, 0, width * 8, 1e6), int(Qt::TextWordWrap | Qt::AlignTop | align), text);
        painter_.restore();
    }
    void paragraph(const QString& text, double size, const QColor& colour, bool bold = false, double after = 4) {
        const double height = textHeight(text, kWidth, size, bold);
        need(height);
        textAt(kMargin, y_, kWidth, text, size, colour, bold);
        y_ += height + after;
    }
    void heading(const QString& text, double keep = 60) {
        need(30 + keep); // a heading must not stand alone at the foot of a page
        y_ += 16;
        paragraph(text, 13, kInk, true, 6);
    }
    void rule(double top, const QColor& colour = kLine, double width = 0.6) {
        painter_.setPen(QPen(colour, width));
        painter_.drawLine(QPointF(kMargin, top), QPointF(kMargin + kWidth, top));
    }

private:
    void endPage() {
        textAt(kMargin, kPageHeight - 36, kWidth, QStringLiteral("%1 · page %2").arg(footer_).arg(page_), 7.5, kMuted);
    }

    QPdfWriter& writer_;
    QPainter painter_;
    QString footer_;
    double y_ = kMargin;
    int page_ = 1;
};

} // namespace kvscope::ui
