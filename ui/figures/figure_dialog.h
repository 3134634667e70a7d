// The dialog in which the user chooses a figure for the open traces, sees it and saves it for print. It reads the
// traces on a worker thread. For each figure that cannot be made from these traces, the list tells why.
#pragma once

#include "ui/figures/figure.h"

#include <QDialog>
#include <QStringList>

#include <memory>
#include <optional>

class QComboBox;
class QLabel;
class QListWidget;
class QPushButton;

namespace kvscope::ui {

class FigureDialog final : public QDialog {
    Q_OBJECT
public:
    explicit FigureDialog(const QStringList& files, QWidget* parent = nullptr);

    /// The figure that the dialog shows; absent if it shows none.
    const std::optional<FigureData>& shown() const { return data_; }
    /// Writes the shown figure to a file; on failure the status line tells why. @return whether the file was written
    bool save(const QString& path);

signals:
    void judged(); // the list now tells which figures can be made
    void drawn();  // shown() has changed

private:
    void showSources(std::shared_ptr<const FigureSources> sources);
    void choose(int row);
    void showFigure(FigureData figure);
    void chooseFile();
    QSizeF millimetres() const;

    QListWidget* list_;
    QComboBox* width_;
    QLabel *about_, *preview_, *status_;
    QPushButton* save_;
    std::shared_ptr<const FigureSources> sources_;
    std::optional<FigureData> data_;
    QString folder_;
    int asked_ = 0; // number of the latest request; the answer to an older one is dropped
};

} // namespace kvscope::ui
