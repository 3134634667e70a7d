// Asks the user where to save. The dialog has a filter for each format, formats of numbers can also be compressed, and
// the chosen name always ends in a suffix.
#pragma once

#include <QString>

#include <vector>

class QWidget;

namespace kvscope::ui {

struct FileFormat {
    QString title;  // "CSV"
    QString suffix; // "csv"; compressed: "csv.gz"
};

/// The formats, followed by the same formats compressed if this program can compress.
std::vector<FileFormat> withCompressed(std::vector<FileFormat> formats);
/// CSV and JSON lines, plain and compressed.
std::vector<FileFormat> numberFormats();

/// Completes the name that the user typed while format `chosen` was selected. If the name ends in the suffix of a
/// format, that suffix counts, unless the user selected another format than the first.
QString completeName(const QString& typed, const std::vector<FileFormat>& formats, std::size_t chosen);

/// Asks for a path. `suggested`: the first name, in its own folder if it has one, else in the folder of the last time.
/// @return empty: the user cancelled
QString askSavePath(QWidget* parent, const QString& title, const QString& suggested,
                    const std::vector<FileFormat>& formats);

} // namespace kvscope::ui
