// The end of files that appear under their names when they are complete.
#pragma once

#include <QImage>
#include <QSaveFile>
#include <QString>

namespace kvscope::ui {

/// In place of QSaveFile::commit, which does not notice that the last part of the file, which is still in its buffer,
/// finds no room on the disk. @return false: what had the name is as it was
inline bool commitWhole(QSaveFile& file) { return file.flush() && file.commit(); }

/// Writes a PNG. @return false where it could not be written: what had the name is as it was
inline bool savePng(const QImage& image, const QString& path) {
    QSaveFile file(path);
    return file.open(QIODevice::WriteOnly) && image.save(&file, "PNG") && commitWhole(file);
}

} // namespace kvscope::ui
