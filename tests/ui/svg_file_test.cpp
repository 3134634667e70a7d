// Pictures as SVG, whatever the texts in them are.
#include "ui/frame/svg_file.h"

#include <QPainter>
#include <QXmlStreamReader>
#include <gtest/gtest.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

struct Parsed {
    QString error, text;
    QStringList elements;
};

Parsed parse(const QByteArray& document) {
    Parsed parsed;
    QXmlStreamReader reader(document);
    while (!reader.atEnd()) {
        reader.readNext();
        if (reader.isStartElement()) parsed.elements << reader.name().toString();
        if (reader.isCharacters()) parsed.text += reader.text().toString();
    }
    if (reader.hasError()) parsed.error = reader.errorString();
    return parsed;
}

TEST(SvgFile, HoldsHostileTextAsText) {
    const QString hostile = QStringLiteral("R&D <script>alert(1)</script> ]]> \"' ") + QChar(0x1b) + QChar(0x01) +
                            QChar(0xfffe) + QChar(0xffff) + QStringLiteral(" end");
    SvgFile svg({200, 100}, 96, hostile, QStringLiteral("a --> b ") + hostile);
    QPainter painter(&svg.device());
    painter.drawText(QPoint(10, 50), hostile);
    painter.end();
    const Parsed parsed = parse(svg.document());
    EXPECT_EQ(parsed.error.toStdString(), "");
    EXPECT_FALSE(parsed.elements.contains(QStringLiteral("script")));
    EXPECT_EQ(parsed.elements.count(QStringLiteral("title")), 1);
    EXPECT_EQ(parsed.elements.count(QStringLiteral("desc")), 1);
    EXPECT_TRUE(parsed.text.contains(QStringLiteral("R&D <script>alert(1)</script> ]]> \"'  end")));
    for (const QChar c : {QChar(0x1b), QChar(0x01), QChar(0xfffe), QChar(0xffff)})
        EXPECT_FALSE(QString::fromUtf8(svg.document()).contains(c)) << int(c.unicode());
}

/// Unescaped, these characters would reverse the words of the picture beside them.
TEST(SvgFile, ShowsControlsOfWritingDirection) {
    const QString turned = QStringLiteral("a") + QChar(0x202e) + QStringLiteral("b");
    SvgFile svg({200, 100}, 96, turned, turned);
    QPainter painter(&svg.device());
    painter.drawText(QPoint(10, 50), turned);
    painter.end();
    EXPECT_FALSE(QString::fromUtf8(svg.document()).contains(QChar(0x202e)));
    const Parsed parsed = parse(svg.document());
    EXPECT_EQ(parsed.error.toStdString(), "");
    EXPECT_GE(parsed.text.count(QStringLiteral("\\u202e")), 3) << "title, description and what is painted";
}

TEST(SvgFile, WithoutWordsHasNoTitle) {
    SvgFile svg({20, 10}, 96, {}, {});
    QPainter painter(&svg.device());
    painter.drawLine(0, 0, 5, 5);
    painter.end();
    const Parsed parsed = parse(svg.document());
    EXPECT_EQ(parsed.error.toStdString(), "");
    EXPECT_FALSE(parsed.elements.contains(QStringLiteral("title")));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
