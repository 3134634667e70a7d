// Asks where to save: one filter for each format, numbers also compressed, and a name that always ends in a suffix.
#pragma once

#include <QString>

#include <vector>

class QWidget;

namespace kvscope::ui {

struct FileFormat {
    QString title;  // "CSV"
    QString suffix; // "csv"; compressed: "csv.gz"
};

/// The formats and then, if this program can, the same compressed.
std::vector<FileFormat> withCompressed(std::vector<FileFormat> formats);
/// CSV and JSON lines, plain and compressed.
std::vector<FileFormat> numberFormats();

/// The name that is meant by what was typed while `chosen` of the formats was picked. The suffix that was typed counts,
/// unless somebody picked another format than the first on purpose.
QString completeName(const QString& typed, const std::vector<FileFormat>& formats, std::size_t chosen);

/// Empty: nothing is to be saved. `suggested` is the name at first, in the folder it names or the one of the last time.
QString askSavePath(QWidget* parent, const QString& title, const QString& suggested,
                    const std::vector<FileFormat>& formats);

} // namespace kvscope::ui
