// Pictures that find no room on the disk.
#include "ui/frame/saved_file.h"

#include "tests/ui/full_disk.h"
#include "ui/frame/picture.h"

#include <QFile>
#include <QPainter>
#include <QTemporaryDir>

#include <gtest/gtest.h>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

QByteArray contentOf(const QString& path) {
    QFile file(path);
    return file.open(QIODevice::ReadOnly) ? file.readAll() : QByteArray();
}

bool writeBytes(const QString& path, const QByteArray& bytes) {
    QSaveFile file(path);
    return file.open(QIODevice::WriteOnly) && file.write(bytes) == bytes.size() && commitWhole(file);
}

TEST(SavedFile, WhatFindsNoRoomIsNotSavedAndLeavesWhatWasThere) {
    const QTemporaryDir folder;
    const QString path = folder.filePath(QStringLiteral("file"));
    ASSERT_TRUE(writeBytes(path, "before"));
    for (const int bytes : {5'000, 100'000}) { // less than a buffer of Qt, and more
        const FullDisk full(4096);
        EXPECT_FALSE(writeBytes(path, QByteArray(bytes, 'x'))) << bytes;
    }
    EXPECT_EQ(contentOf(path), "before");
    EXPECT_TRUE(writeBytes(path, "after"));
    EXPECT_EQ(contentOf(path), "after");
}

/// The picture has an edge length at which each format is larger than the room that is left.
TEST(SavedFile, APictureOfEveryFormatSaysThatItFoundNoRoom) {
    const QTemporaryDir folder;
    const PaintedPicture picture{{600, 400}, 1, QStringLiteral("title"), QStringLiteral("description")};
    const auto paint = [](QPainter& painter, bool) {
        painter.setPen(Qt::gray);
        for (int i = 0; i < 300; ++i) painter.drawLine(i * 7919 % 600, i * 104'729 % 400, i * 31 % 600, i * 17 % 400);
    };
    for (const char* name : {"a.png", "a.svg", "a.pdf"}) {
        const QString path = folder.filePath(QLatin1String(name));
        ASSERT_TRUE(paintToFile(path, picture, paint)) << name;
        const QByteArray before = contentOf(path);
        ASSERT_GT(before.size(), 2048) << name;
        {
            testing::internal::CaptureStderr(); // libpng would print a line of its own
            const FullDisk full(rlim_t(before.size() - 1000));
            EXPECT_FALSE(paintToFile(path, picture, paint)) << name;
            EXPECT_EQ(saveFailure(), QStringLiteral("File too large")) << name;
            EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << name;
        }
        const QByteArray after = contentOf(path);
        EXPECT_TRUE(after == before) << name << ": the picture that was there stays; it had " << before.size()
                                     << " bytes and now has " << after.size();
    }
}

/// Its bytes are all in the buffer of the file when it ends.
TEST(SavedFile, AShortDocumentSaysWhyItFoundNoRoom) {
    const QTemporaryDir folder;
    const FullDisk full(1000);
    EXPECT_FALSE(saveBytes(QByteArray(3000, 'x'), folder.filePath(QStringLiteral("a.json"))));
    EXPECT_EQ(saveFailure(), QStringLiteral("File too large"));
}

/// A page of one large picture: QPdfWriter gives it to the file in one piece, of which a part finds room.
TEST(SavedFile, ADocumentOfOneLargePieceSaysThatItFoundNoRoom) {
    const QTemporaryDir folder;
    QImage noise(400, 400, QImage::Format_RGB32);
    quint32 state = 1;
    for (int y = 0; y < noise.height(); ++y)
        for (int x = 0; x < noise.width(); ++x) noise.setPixel(x, y, (state = state * 1664525 + 1013904223) >> 8);
    const QString path = folder.filePath(QStringLiteral("a.pdf"));
    const PaintedPicture picture{{400, 400}, 1, {}, {}};
    const FullDisk full(20'000);
    EXPECT_FALSE(paintToFile(path, picture, [&](QPainter& painter, bool) { painter.drawImage(0, 0, noise); }));
    EXPECT_FALSE(QFile::exists(path));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
