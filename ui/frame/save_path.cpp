#include "ui/frame/save_path.h"

#include "profiler/export/gzip_stream.h"
#include "ui/frame/as_written.h"

#include <QCoreApplication>
#include <QDir>
#include <QFileDialog>
#include <QFileInfo>
#include <QMessageBox>

#include <algorithm>

namespace kvscope::ui {
namespace {

const QLatin1String kPacked(".gz");

QString text(const char* source) { return QCoreApplication::translate("SavePath", source); }

/// Whether the path ends in the suffix. The name of a hidden file, such as ".csv", is no suffix.
bool endsIn(const QString& path, const QString& suffix) {
    const QString name = QFileInfo(path).fileName();
    return name.size() > suffix.size() + 1 && name.endsWith(QLatin1Char('.') + suffix, Qt::CaseInsensitive);
}

QString filterOf(const FileFormat& format) { return QStringLiteral("%1 (*.%2)").arg(format.title, format.suffix); }

} // namespace

std::vector<FileFormat> withCompressed(std::vector<FileFormat> formats) {
    if (!GzipStream::isAvailable()) return formats;
    for (std::size_t i = 0, plain = formats.size(); i < plain; ++i)
        formats.push_back({text("%1, compressed").arg(formats[i].title), formats[i].suffix + kPacked});
    return formats;
}

std::vector<FileFormat> numberFormats() {
    return withCompressed({{text("CSV"), QStringLiteral("csv")}, {text("JSON lines"), QStringLiteral("jsonl")}});
}

QString completeName(const QString& typed, const std::vector<FileFormat>& formats, std::size_t chosen) {
    const QString& wanted = formats[chosen].suffix;
    QString found;
    for (const FileFormat& format : formats) // the longest suffix: "csv.gz" rather than "gz"
        if (endsIn(typed, format.suffix) && format.suffix.size() > found.size()) found = format.suffix;
    if (!found.isEmpty()) return chosen == 0 ? typed : typed.chopped(found.size() + 1) + QLatin1Char('.') + wanted;
    if (!endsIn(typed, QStringLiteral("gz"))) return typed + QLatin1Char('.') + wanted;
    // A dialog with the filter *.csv.gz completes "rows" to "rows.gz".
    const QString packed = wanted.endsWith(kPacked) ? wanted : wanted + kPacked, stem = typed.chopped(kPacked.size());
    const bool offered =
        std::any_of(formats.begin(), formats.end(), [&](const FileFormat& format) { return format.suffix == packed; });
    return offered ? stem + QLatin1Char('.') + packed : completeName(stem, formats, chosen);
}

QString askSavePath(QWidget* parent, const QString& title, const QString& suggested,
                    const std::vector<FileFormat>& formats) {
    QStringList filters;
    for (const FileFormat& format : formats) filters << filterOf(format);
    QString filter;
    static QString folder = QDir::homePath(); // the folder of the last time
    const QString typed = QFileDialog::getSaveFileName(parent, title, QDir(folder).filePath(suggested),
                                                       filters.join(QStringLiteral(";;")), &filter);
    if (typed.isEmpty()) return {};
    folder = QFileInfo(typed).absolutePath();
    const QString path = completeName(typed, formats, std::size_t(std::max<qsizetype>(0, filters.indexOf(filter))));
    if (path != typed && QFileInfo::exists(path) && // the dialog has only asked about `typed`
        QMessageBox::question(parent, text("Replace the file?"),
                              asWritten(text("%1 exists. Replace it?").arg(QFileInfo(path).fileName()))) !=
            QMessageBox::Yes)
        return {};
    return path;
}

} // namespace kvscope::ui
