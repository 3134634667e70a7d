// Chooses a figure of the papers for the open traces, shows it, and saves it for print. Reading happens beside the
// window; figures that the traces cannot draw say why.
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

    /// The figure that is shown, if it could be drawn.
    const std::optional<FigureData>& shown() const { return data_; }
    /// Writes the shown figure; what went wrong is in the status line. @return true if it was written
    bool save(const QString& path);

signals:
    void judged(); // it is known which figures can be drawn
    void drawn();  // shown() changed

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
    int asked_ = 0; // a late figure is dropped
};

} // namespace kvscope::ui
