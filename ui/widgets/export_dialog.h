// The view in front as a picture or as numbers: format, size, scale and theme, with a preview. Remembers what was
// chosen.
#pragma once

#include "ui/frame/picture.h"
#include "ui/frame/save_path.h"
#include "ui/widgets/numbers_preview.h"

#include <QDialog>
#include <QPointer>
#include <QTimer>

class QComboBox;
class QLabel;
class QPushButton;
class QSpinBox;

namespace kvscope::ui {

class View;

class ExportDialog final : public QDialog {
    Q_OBJECT
public:
    /// `suggested`: a path without suffix. `settings`: the file that remembers; empty: nothing is remembered.
    ExportDialog(View& view, const QString& suggested, const QString& settings, QWidget* parent);

    /// What the controls say.
    PictureStyle style() const;
    QString format() const; // "png", "svg", "pdf", "csv", "jsonl"
    /// Writes to `path`, whose suffix decides if it has one of those. Numbers are written away from the GUI thread:
    /// saved() comes when they are complete. @return false: the dialog says why
    bool save(const QString& path);

signals:
    void previewed();
    void saved(const QString& path);

private:
    void chooseSize();
    void changed();
    void preview();
    void chooseFile();
    static bool isNumbers(const QString& format);
    std::vector<FileFormat> formats() const; // of the file
    NumberWriter numbers() const;
    void showLines(const QString& csv, const QString& problem);
    void ended(const QString& path, const QString& problem);
    void remember() const;
    void recall();

    QPointer<View> view_;
    QString suggested_, settings_;
    QString writing_; // numbers under way to this file
    QComboBox *format_, *table_, *preset_, *scale_, *theme_;
    QSpinBox *width_, *height_;
    QLabel *preview_, *about_, *status_;
    QPushButton* save_;
    QTimer redraw_;
    NumbersPreview lines_;
};

/// Where the desktop keeps the choices of export dialogs.
QString exportSettingsFile();

} // namespace kvscope::ui
