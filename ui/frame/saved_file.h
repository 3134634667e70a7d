// The end of files that appear under their names when they are complete.
#pragma once

#include <QBuffer>
#include <QImage>
#include <QSaveFile>
#include <QString>

namespace kvscope::ui {

/// In place of QSaveFile::commit, which does not notice that the last part of the file, which is still in its buffer,
/// finds no room on the disk. @return false: what had the name is as it was
inline bool commitWhole(QSaveFile& file) { return file.flush() && file.commit(); }

/// The picture as a PNG; empty where it is none. libpng writes to a file through Qt and prints a line of its own where
/// the disk is full, so pictures become bytes in memory first.
inline QByteArray pngOf(const QImage& image) {
    QByteArray bytes;
    QBuffer buffer(&bytes);
    buffer.open(QIODevice::WriteOnly);
    if (!image.save(&buffer, "PNG")) bytes.clear();
    return bytes;
}

/// Writes a PNG. @return false where it could not be written: what had the name is as it was
inline bool savePng(const QImage& image, const QString& path) {
    const QByteArray bytes = pngOf(image);
    QSaveFile file(path);
    return !bytes.isEmpty() && file.open(QIODevice::WriteOnly) && file.write(bytes) == bytes.size() &&
           commitWhole(file);
}

} // namespace kvscope::ui
