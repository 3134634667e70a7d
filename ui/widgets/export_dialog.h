// The dialog that exports the view in front as a picture or as numbers. The user chooses format, size, scale and theme
// and sees a preview. The dialog remembers the choices for the next time.
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
    /// `suggested`: a path without suffix. `settings`: the file in which the choices are remembered; empty: nowhere.
    ExportDialog(View& view, const QString& suggested, const QString& settings, QWidget* parent);

    /// The style of the picture as the controls are set.
    PictureStyle style() const;
    QString format() const; // "png", "svg", "pdf", "csv", "jsonl"
    /// Writes the view to `path`. The suffix of `path` decides about the format if it is one of the formats, otherwise
    /// the chosen format does. Numbers are written on a worker thread, and saved() is emitted when the file is
    /// complete.
    /// @return false if nothing was written; the dialog then shows why
    bool save(const QString& path);

signals:
    void previewed();
    void saved(const QString& path);

private:
    void fillControls();
    void layOut();
    void follow(); // connects the controls and the view
    void chooseSize();
    void changed();
    void preview();
    void chooseFile();
    static bool isNumbers(const QString& format);
    /// The formats that the file can have, the chosen one first.
    std::vector<FileFormat> formats() const;
    NumberWriter numbers() const;
    void showLines(const QString& csv, const QString& problem);
    void ended(const QString& path, const QString& problem);
    bool remember() const;
    void recall();

    QPointer<View> view_;
    QString suggested_, settings_;
    QString writing_; // the file to which numbers are being written; empty: none
    QComboBox *format_, *table_, *preset_, *scale_, *theme_;
    QSpinBox *width_, *height_;
    QLabel *preview_, *about_, *status_;
    QPushButton* save_;
    QTimer redraw_;
    NumbersPreview lines_;
};

/// The file in which the desktop keeps the choices of export dialogs.
QString exportSettingsFile();

} // namespace kvscope::ui
