// The end of files that appear under their names when they are complete.
#pragma once

#include <QBuffer>
#include <QImage>
#include <QSaveFile>
#include <QString>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>

namespace kvscope::ui {

/// In place of QSaveFile::commit, which does not notice that the last part of the file, which is still in its buffer,
/// finds no room on the disk. @return false: the file was not written, and a file that had the name before is unchanged
inline bool commitWhole(QSaveFile& file) { return file.flush() && file.commit(); }

/// Writes a file. Pictures and documents become bytes in memory first: where a disk is full, libpng prints a line of
/// its own, and QPdfWriter, which writes through QDataStream, leaves out the rest of a document without an error.
/// @return empty, or why the file could not be written; then a file that had the name before is unchanged
inline QString whyNotSaved(const QByteArray& bytes, const QString& path) {
    if (bytes.isEmpty()) return QStringLiteral("there is nothing to write");
    QSaveFile file(path);
    if (!file.open(QIODevice::WriteOnly)) return file.errorString();
    // a disk with room for a part takes that part, and the next write fails and says why
    for (qint64 at = 0; at < bytes.size();) {
        const qint64 taken = file.write(bytes.constData() + at, bytes.size() - at);
        if (taken <= 0) return file.errorString();
        at += taken;
    }
    errno = 0;
    if (commitWhole(file)) return {};
    // Qt calls it an unknown error when a buffer finds no room
    return errno != 0 ? QString::fromLocal8Bit(std::strerror(errno)) : file.errorString();
}

/// As errno for saveBytes: why the last file that this thread saved with it was not written; empty: it was. Pictures
/// are saved by functions of views that only say whether.
inline QString& saveFailure() {
    thread_local QString why;
    return why;
}
inline bool saveBytes(const QByteArray& bytes, const QString& path) {
    return (saveFailure() = whyNotSaved(bytes, path)).isEmpty();
}

/// Whether there is memory for a PDF document. Qt embeds fonts at its end without looking whether it got the memory for
/// that, and ends the program where it did not.
inline bool hasMemoryForPdf() {
    constexpr std::size_t kEnough = std::size_t(64) << 20;
    void* const memory = ::operator new(kEnough, std::nothrow);
    ::operator delete(memory);
    return memory != nullptr;
}

/// The bytes of the picture as a PNG; empty if the picture cannot be written as one.
inline QByteArray pngOf(const QImage& image) {
    QByteArray bytes;
    QBuffer buffer(&bytes);
    buffer.open(QIODevice::WriteOnly);
    if (!image.save(&buffer, "PNG")) bytes.clear();
    return bytes;
}

} // namespace kvscope::ui
